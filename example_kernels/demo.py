"""The main job on a real kernel: check, build, verify, publish to a Hub on loopback, load back, compare.

Everything is the real part: Nix, PyTorch's and NVIDIA's wheels, nvcc, huggingface_hub and the kernels client. Only
the Hub is a stand-in, a fresh one on 127.0.0.1. `bash .ci/demo` installs what this needs and runs it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kbuild.localhub.running import DEMO, running_hub
from kbuild.machine import installed_torch
from kbuild.project import Project
from kbuild.variants import Matrix, best_for_machine, chosen, select

PROJECT = Path(__file__).parent / "relu"
# Built along with what runs here, to show that a machine without a GPU builds for one.
CUDA_VARIANT = "torch213-cxx11-cu130-x86_64-linux"

LOAD = """
import json, sys, torch
from kernels import get_kernel
device = "cuda" if torch.cuda.is_available() else "cpu"
relu = get_kernel("demo-org/relu", version=1, trust_remote_code=True, backend=device)
shapes = [(1,), (7,), (4095,), (3, 1025), (512, 4096)]
for shape in shapes:
    x = torch.randn(shape, device=device)
    assert torch.equal(relu.relu(x), torch.relu(x)), shape
print(json.dumps({"file": relu.__file__, "device": device, "shapes": len(shapes)}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the table."""

    name: str
    seconds: float
    result: str


def run(argv: list[str], environment: dict[str, str] | None = None) -> str:
    """Run a command whose story goes to the terminal; its standard output. A failure ends the demo."""
    done = subprocess.run(
        argv, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nthe demo stops: {' '.join(argv[:6])} ... exited with {done.returncode}")
    return done.stdout


def main() -> None:
    kbuild = [sys.executable, "-m", "kbuild"]
    steps: list[Step] = []

    def step(name: str, argv: list[str], environment: dict[str, str] | None = None) -> str:
        print(f"\n== {name}", file=sys.stderr, flush=True)
        start = time.monotonic()
        output = run(argv, environment)
        steps.append(Step(name=name, seconds=time.monotonic() - start, result=""))
        return output

    def result(text: str) -> None:
        steps[-1] = Step(name=steps[-1].name, seconds=steps[-1].seconds, result=text)

    torch = installed_torch()
    if torch is None:
        sys.exit("no PyTorch in this environment: `bash .ci/demo` installs one")
    candidates = chosen(select(Project.open(PROJECT).require_config(), Matrix.load()))
    gpu = torch.cuda if Path("/dev/nvidia0").exists() else None
    here = best_for_machine(candidates, torch=torch.torch, cuda=gpu)
    if here is None:
        sys.exit(f"no variant of the example serves PyTorch {torch.torch} with CUDA {gpu}")

    step("check", [*kbuild, "check", str(PROJECT)])
    result("no errors")
    wanted = dict.fromkeys([here.name, CUDA_VARIANT])
    names = [flag for name in wanted for flag in ("--variant", name)]
    built = json.loads(step("build", [*kbuild, "build", str(PROJECT), *names, "--json"]))
    result("\n".join(f"{v['status']}: {v['variant']}" for v in built["variants"]))
    verified = json.loads(step("verify", [*kbuild, "abi", str(PROJECT / "build"), "--json"]))
    result(f"{'no violation' if verified['ok'] else 'violations'}")

    with tempfile.TemporaryDirectory(prefix="kbuild-demo-hub-") as root, running_hub(Path(root), DEMO) as hub:
        environment = dict(hub.environment)
        publish = [*kbuild, "publish", "demo-org/relu", str(PROJECT), "--allow-dirty", "--allow-mixed"]
        step("publish", publish, environment)
        result(f"demo-org/relu, branch v1, on {hub.endpoint}")
        loaded = json.loads(step("get_kernel", [sys.executable, "-c", LOAD], environment).splitlines()[-1])
        result(
            f"equals torch.relu on {loaded['device']}, {loaded['shapes']} shapes\n{Path(loaded['file']).parent.name}"
        )

    table = Table("step", "seconds", "result")
    for line in steps:
        table.add_row(line.name, f"{line.seconds:.1f}", line.result)
    console = Console()
    console.print(table)
    console.print(f"variants: {PROJECT / 'build'}", soft_wrap=True)


main()
