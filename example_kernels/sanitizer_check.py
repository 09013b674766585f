"""Run every path of the example kernels once under compute-sanitizer, and write down what it found.

    python example_kernels/sanitizer_check.py REPORT.json BUILD...

BUILD is a project's build folder, such as example_kernels/ltx_video/build. Needs a GPU and CUDA's compute-sanitizer.
Memory is PyTorch's own allocation by allocation (no caching), so that a byte beyond a tensor is beyond an allocation.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck")
# In single elements and in vectors of 16 bytes; in registers, in several slices, in passes.
HIDDEN = (6, 136, 1024, 4098, 8192, 16400)
MANY = 1024  # rows of up to this length also come in such numbers that two share a thread


def tensors(dtype: Any) -> Callable[..., Any]:
    """Made on the CPU, so that the sanitizer sees few kernels but ours."""
    import torch

    return lambda *shape: torch.randn(*shape).to(dtype).cuda()


def qwen3_8b(kernel: Any) -> Iterator[str]:
    import torch

    for dtype, hidden in itertools.product((torch.float32, torch.float16, torch.bfloat16), HIDDEN):
        make = tensors(dtype)
        for rows in (3, 600) if hidden <= MANY else (3,):
            x, residual, apart = make(rows, hidden), make(rows, hidden), make(2, rows, 2, hidden)[:, :, 1]
            for weight in (None, make(hidden), tensors(torch.float32)(hidden)):
                kernel.rms_norm(x, weight)
                kernel.rms_norm(apart, weight)
                kernel.add_rms_norm(x, residual, weight)
            leaves = make(rows, hidden).requires_grad_(), make(hidden).requires_grad_()
            torch.autograd.grad(kernel.rms_norm(*leaves), leaves, residual)
        yield f"{dtype}, {hidden}"


def ltx_video(kernel: Any) -> Iterator[str]:
    import torch

    for dtype, hidden in itertools.product((torch.float32, torch.float16, torch.bfloat16), HIDDEN):
        make = tensors(dtype)
        for batch, grid in ((2, (3, 2, 2)), (2, (3, 2, 171)), (1, (1, 1, 2049))):
            tokens = grid[0] * grid[1] * grid[2]
            if tokens > 12 and hidden > MANY:
                continue
            x, residual = make(batch, tokens, hidden), make(batch, tokens, hidden)
            kernel.rms_norm(x, make(hidden))
            for places in (1, tokens):
                shift, scale, gate, *_ = make(batch, places, 6, hidden).unbind(2)
                for layer_norm in (False, True):
                    kernel.ada_norm(x, scale, shift, layer_norm=layer_norm)
                    kernel.add_ada_norm(x, residual, scale, shift, gate, layer_norm=layer_norm)
                    kernel.add_ada_norm(x, residual, scale, shift, layer_norm=layer_norm)
                kernel.gated_add(x, residual, gate)
            for angles in (make, tensors(torch.float32)):
                kernel.apply_rotary_emb(x, (angles(1, tokens, hidden), angles(1, tokens, hidden)))
            kernel.rope_3d(x, kernel.rope_3d_table(*grid, hidden, device="cpu").cuda(), *grid)
            for approximate in ("none", "tanh"):
                kernel.geglu(x, approximate)
        yield f"{dtype}, {hidden}"


PROJECTS: dict[str, Callable[[Any], Iterator[str]]] = {"qwen3_8b": qwen3_8b, "ltx_video": ltx_video}


def run_paths(build: Path) -> None:
    import torch
    from kernels import get_local_kernel

    kernel = get_local_kernel(build)
    for done in PROJECTS[build.parent.name](kernel):
        torch.cuda.synchronize()
        print(done, flush=True)


def check(tool: str, build: Path) -> dict[str, Any]:
    """One tool over one project: its exit status, and the line in which it sums up."""
    program = [sys.executable, __file__, "--paths", str(build)]
    argv = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *program]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    summary = re.findall(r"={3,} (.*SUMMARY.*)", done.stdout)
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
    return {
        "project": build.parent.name,
        "tool": tool,
        "exit": done.returncode,
        "summary": summary[-1] if summary else "none",
        "paths": sum(line.startswith("torch.") for line in done.stdout.splitlines()),
    }


def machine() -> dict[str, str]:
    import torch

    version = subprocess.run(
        ["compute-sanitizer", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "sanitizer": re.findall(r"[Vv]ersion ([\d.]+)", version)[0],
    }


def markdown(report: dict[str, Any]) -> str:
    m = report["machine"]
    lines = [
        "# Kernels under compute-sanitizer",
        "",
        f"{m['gpu']}, torch {m['torch']}, compute-sanitizer {m['sanitizer']}. Every path once.",
        "",
        "| project | tool | dtypes and sizes | found |",
        "| --- | --- | ---: | --- |",
    ]
    lines += [f"| {c['project']} | {c['tool']} | {c['paths']} | {c['summary']} |" for c in report["checks"]]
    lines += ["", "Written by `example_kernels/sanitizer_check.py`."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--paths", type=Path, help="only run the paths of this build, as the sanitizer has it done"
    )
    parser.add_argument("report", type=Path, nargs="?")
    parser.add_argument("builds", type=Path, nargs="*")
    arguments = parser.parse_args()
    if arguments.paths is not None:
        run_paths(arguments.paths.resolve())
        return
    with ThreadPoolExecutor() as pool:
        pairs = [(tool, build.resolve()) for build in arguments.builds for tool in TOOLS]
        checks = list(pool.map(check, *zip(*pairs, strict=True)))
    report = {"version": 1, "machine": machine(), "checks": checks}
    arguments.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    arguments.report.with_suffix(".md").write_text(markdown(report), encoding="utf-8")
    print(markdown(report))
    sys.exit(any(one["exit"] != 0 for one in checks))


main()
