"""Judge what a coding agent made of a task: python check_try.py TASK PROJECT [--built]

Runs kbuild check --strict, builds a CPU and a CUDA variant (unless --built says that they are), runs the project's own
tests, then tests of the task's that its author has not seen. Needs kbuild, and PyTorch, kernels and pytest beside it;
on a GPU everything runs there. Exits 0 where all of it passes.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

UNSEEN = {
    "rms_norm_h100": """
def exact(x, weight, eps):
    y = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.double()
for dtype, bound in BOUNDS.items():
    for shape in [(1, 4096), (3, 5, 128), (2, 4095), (7, 1), (4, 12288), (0, 4096), (2, 40960)]:
        x = torch.randn(shape, device=DEVICE).to(dtype)
        for weight in (None, torch.randn(shape[-1], device=DEVICE).to(dtype)):
            close(kernel.rms_norm(x, weight, 1e-5), exact(x, weight, 1e-5), bound)
    wide = torch.randn(6, 260, device=DEVICE).to(dtype)
    for view in (wide[:, 1:129], wide[:, ::2], wide.T):
        close(kernel.rms_norm(view), exact(view, None, 1e-6), bound)
layer = kernel.layers.RMSNorm()
layer.weight, layer.variance_epsilon = torch.nn.Parameter(torch.randn(128, device=DEVICE)), 1e-6
x = torch.randn(4, 128, device=DEVICE)
close(layer(x), exact(x, layer.weight, 1e-6), BOUNDS[torch.float32])
compiled = torch.compile(lambda t: kernel.rms_norm(t) + 1, fullgraph=True, backend="aot_eager")
close(compiled(x), exact(x, None, 1e-6) + 1, 1e-5)
""",
    "swiglu_a100": """
def exact(x):
    gate, up = x.double().chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up
for dtype, bound in BOUNDS.items():
    for shape in [(1, 8192), (3, 5, 256), (2, 4098), (7, 2), (4, 24576), (0, 8192), (65537, 8)]:
        x = torch.randn(shape, device=DEVICE).to(dtype)
        close(kernel.swiglu(x), exact(x), 2 * bound)
    wide = torch.randn(6, 260, device=DEVICE).to(dtype)
    for view in (wide[:, 1:129], wide[:, ::2], wide.T):
        close(kernel.swiglu(view), exact(view), 2 * bound)
x = torch.randn(4, 64, device=DEVICE, requires_grad=True)
other = x.detach().double().requires_grad_()
kernel.swiglu(x).sum().backward()
exact(other).sum().backward()
close(x.grad, other.grad, 1e-5)
compiled = torch.compile(lambda t: kernel.swiglu(t) + 1, fullgraph=True, backend="aot_eager")
close(compiled(x.detach()), exact(x.detach()) + 1, 1e-5)
""",
    "int8_quant": """
def judge(x):
    q, scale = kernel.quantize(x)
    assert q.dtype == torch.int8 and q.shape == x.shape
    assert scale.dtype == torch.float32 and scale.shape == (*x.shape[:-1], 1)
    if x.numel() == 0:
        return
    most = x.double().abs().amax(-1, keepdim=True)
    close(scale, most / 127, 1e-6)
    wanted = torch.where(most > 0, x.double() / (most / 127).clamp_min(1e-300), torch.zeros_like(most))
    assert (q.double() - wanted).abs().max() <= 0.5 + 1e-3, "not the nearest integer"
for dtype in BOUNDS:
    for shape in [(1, 4096), (3, 5, 128), (2, 4095), (7, 1), (4, 12288), (0, 4096), (2, 40960)]:
        judge(torch.randn(shape, device=DEVICE).to(dtype))
    wide = torch.randn(6, 260, device=DEVICE).to(dtype)
    for view in (wide[:, 1:129], wide[:, ::2], wide.T):
        judge(view)
    zero = torch.zeros(2, 64, device=DEVICE).to(dtype)
    q, scale = kernel.quantize(zero)
    assert (q == 0).all() and (scale == 0).all()
x = torch.randn(4, 64, device=DEVICE)
def there_and_back(t):
    q, scale = kernel.quantize(t)
    return q.float() * scale
compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
assert (compiled(x) - x).abs().max() < x.abs().max() / 127
""",
}
UNSEEN["swiglu_triton"] = UNSEEN["swiglu_a100"]
REPOSITORIES = {
    "rms_norm_h100": "qwen-norm",
    "swiglu_a100": "swiglu",
    "int8_quant": "int8-quant",
    "swiglu_triton": "swiglu-triton",
}
PREAMBLE = """
import sys, torch
from kernels import get_kernel
kernel = get_kernel(sys.argv[1], version=1, trust_remote_code=True)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUNDS = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
torch.manual_seed(1)
def close(actual, exact, bound):
    torch.testing.assert_close(actual.double(), exact.double(), rtol=bound, atol=2e-6)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the verdict."""

    name: str
    argv: list[str]
    interpreted: bool = False


def python_with_torch() -> str:
    """The `python3` of the environment that `kbuild test` uses too."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    for python in (sys.executable, "python3"):
        if subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    sys.exit("neither this Python nor python3 on the path has PyTorch")


def buildable(project: Path, backend: str) -> str:
    done = subprocess.run(["kbuild", "variants", project, "--json"], stdout=subprocess.PIPE, check=True)
    found = [v for v in json.loads(done.stdout)["variants"] if v["builds"] and v["backend"] == backend]
    wanted = [v for v in found if v["torch"] == "2.13"] or found
    return str(wanted[0]["variant"]) if wanted else sys.exit(f"no {backend} variant can be built")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=UNSEEN)
    parser.add_argument("project", type=Path)
    parser.add_argument("--built", action="store_true")
    options = parser.parse_args()
    project, repository = options.project.resolve(), f"try-org/{REPOSITORIES[options.task]}"

    steps = [Step(name="check", argv=["kbuild", "check", str(project), "--strict"])]
    if not options.built:
        variants = [word for name in ("cpu", "cuda") for word in ("--variant", buildable(project, name))]
        steps.append(Step(name="build", argv=["kbuild", "build", str(project), *variants]))
    unseen = [python_with_torch(), "-c", PREAMBLE + UNSEEN[options.task], repository]
    steps += [
        Step(name="abi", argv=["kbuild", "abi", str(project / "build")]),
        Step(name="own tests", argv=["kbuild", "test", str(project)]),
        Step(name="unseen tests", argv=unseen),
    ]
    if options.task.endswith("_triton"):
        # Without a GPU the tests above met the formula; the kernel itself runs in Triton's interpreter.
        steps += [
            replace(step, name=f"{step.name}, interpreted", interpreted=True)
            for step in steps
            if step.name.endswith("tests")
        ]
    environment = {**os.environ, "LOCAL_KERNELS": f"{repository}={project}", "PYTHONDONTWRITEBYTECODE": "1"}
    failed = []
    for step in steps:
        interpreter = {"TRITON_INTERPRET": "1"} if step.interpreted else {}
        done = subprocess.run(step.argv, env=environment | interpreter, check=False)
        print(f"{options.task}: {step.name}: {'passed' if done.returncode == 0 else 'FAILED'}", flush=True)
        if done.returncode != 0:
            failed.append(step.name)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
