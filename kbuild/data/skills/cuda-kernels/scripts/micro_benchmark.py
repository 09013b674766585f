#!/usr/bin/env python3
"""Time one function of a built kernel beside an expression in PyTorch, without writing a benchmark.

python micro_benchmark.py --path PROJECT --function rms_norm --shape 2048 4096 \
    --eager "torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)"

Several results are a tuple of both, in one order. Compares each in float64 first; of integers the expression must give
the rounded ones. The copy moves the bytes of x and of the results.
On a GPU: time between events, L2 flushed before each call, median of 100.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from kernels import get_local_kernel

FLUSH_BYTES = 512 << 20  # larger than any L2


def times(run, calls=100):
    """Microseconds of single calls: of the GPU where there is one, else by the clock."""
    for _ in range(10):
        run()
    if not torch.cuda.is_available():
        found = []
        for _ in range(calls):
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) * 1e6)
        return found
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)
    ]
    for start, end in events:
        flush.zero_()
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events]


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", type=Path, required=True, help="the project, built")
    parser.add_argument("--function", required=True, help="its function; called with x alone")
    parser.add_argument("--eager", required=True, help="the same in PyTorch, an expression of x")
    parser.add_argument("--shape", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernel = get_local_kernel(options.path)
    function = getattr(kernel, options.function)
    x = torch.randn(options.shape, device=device).to(getattr(torch, options.dtype))
    eager = compile(options.eager, "--eager", "eval")
    exact = tensors(eval(eager, {"torch": torch, "x": x.double()}))  # noqa: S307
    results = tensors(function(x))
    assert [y.shape for y in results] == [e.shape for e in exact], "other shapes than those of --eager"
    errors = [
        (y.double() - e.double()).norm() / e.double().norm() for y, e in zip(results, exact, strict=True)
    ]
    print(f"relative error against float64: {', '.join(f'{error:.1e}' for error in errors)}")
    assert all(error < 1e-2 for error in errors), "wrong results are not worth timing"
    # A copy that reads and writes together as many bytes as the call must, in whole pages.
    pages = (x.nbytes + sum(y.nbytes for y in results)) // 2 // 4096 + 1
    source = torch.randint(0, 255, (pages * 4096,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU (says nothing about a GPU)"
    print(f"{where}, {options.dtype}, {'x'.join(map(str, options.shape))}, median in us")
    for name, run in {
        "kernel": lambda: function(x),
        "eager": lambda: eval(eager, {"torch": torch, "x": x}),  # noqa: S307
        "copy": lambda: target.copy_(source),
    }.items():
        print(f"{name:8}{statistics.median(times(run)):10.1f}")


if __name__ == "__main__":
    main()
