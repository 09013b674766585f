"""What a kernel's benchmarks are written with: correctness first, then GPU and wall time beside the alternatives.

A file in `benchmarks/` defines `operations(kernel, reference)` and returns `Operation`s; `kbuild bench` runs it through
this module, in the Python that has PyTorch. Needs PyTorch, kernels and the standard library alone.
"""

import gc
import importlib
import importlib.metadata
import importlib.util
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# ‖out - exact‖ / ‖exact‖ that rounding to the dtype explains, for random inputs; twice that of one rounding.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}

_GRAPH_CALLS = 20
_REPLAYS = 5
_GPU_TURNS = 3
_WALL_CALLS = 10
_WALL_TURNS = 10
# The buffers that one graph walks through are together this much larger than the L2, so each call finds it cold.
_OVER_L2 = 3
_MEMORY_SHARE = 0.5
_COPY_GRAIN = 4096
# Without a GPU only shapes of up to this many elements are checked: the alternatives and float64 take seconds beyond.
_CHECKED_ON_CPU = 1 << 22

_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One benchmark: the same computation done by the kernel and by each alternative, at several shapes.

    `inputs(shape, dtype)` makes the arguments that all of them take; tensors among them with the most bytes are
    rotated between calls, small ones (weights) are not. `exact` computes in float64. `eager` is the plain PyTorch
    formula, which torch.compile gets too; `best` the best form in PyTorch's own calls, where there is another. `peers`
    are other libraries: a name and a function that returns the callable, or raises ImportError. `moved(*arguments)`
    counts the bytes a call must read and write.
    """

    name: str
    shapes: Sequence[tuple[int, ...]]
    inputs: Callable[..., tuple[Any, ...]]
    exact: Callable[..., Any]
    ours: Callable[..., Any]
    eager: Callable[..., Any]
    moved: Callable[..., int]
    best: Callable[..., Any] | None = None
    peers: dict[str, Callable[[], Callable[..., Any]]] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16


def normal(
    *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0, shift: float = 0.0
) -> torch.Tensor:
    """Fresh normal values on the GPU; on the CPU where there is none, to be checked there."""
    return (torch.randn(*shape, device=_DEVICE, dtype=torch.float32) * scale + shift).to(dtype)


def nbytes(*tensors: torch.Tensor) -> int:
    """The bytes of the tensors; one that is broadcast counts its memory once."""
    return sum(
        t.element_size()
        * math.prod(size for size, stride in zip(t.shape, t.stride(), strict=True) if stride != 0)
        for t in tensors
    )


def _tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _relative_error(result: Any, exact: Any) -> float:
    worst = 0.0
    for actual, expected in zip(_tensors(result), _tensors(exact), strict=True):
        difference = torch.linalg.vector_norm(actual.double() - expected.double())
        worst = max(worst, float(difference / torch.linalg.vector_norm(expected.double()).clamp_min(1e-300)))
    return worst


def _poison() -> None:
    """Leave NaN in freed memory, so that an output that a kernel does not write whole is seen."""
    blocks = [torch.full((1 << 24,), float("nan"), device=_DEVICE) for _ in range(4)]
    del blocks


@dataclass(frozen=True, slots=True)
class _Rotation:
    """Argument tuples that share their small tensors and have large ones of their own."""

    calls: list[tuple[Any, ...]]

    @classmethod
    def of(cls, make: Callable[[], tuple[Any, ...]], moved: Callable[..., int]) -> "_Rotation":
        first = make()
        total = max(moved(*first), 1)
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        wanted = max(_GRAPH_CALLS, math.ceil(_OVER_L2 * properties.L2_cache_size / total))
        free = torch.cuda.mem_get_info()[0] * _MEMORY_SHARE
        count = max(2, min(wanted, int(free / total)))
        largest = max(nbytes(a) for a in first if isinstance(a, torch.Tensor))

        def own(argument: Any) -> Any:
            rotates = (
                isinstance(argument, torch.Tensor)
                and argument.is_contiguous()
                and nbytes(argument) * 16 > largest
            )
            return argument.clone() if rotates else argument

        return cls([first, *(tuple(map(own, first)) for _ in range(count - 1))])


def _gpu_times(run: Callable[..., Any], rotation: _Rotation) -> list[float]:
    """Microseconds a call, of each replay of a graph that makes every call of the rotation once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for arguments in rotation.calls[:3]:
            run(*arguments)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Kept until the graph is done: each call writes memory of its own.
        results = [run(*arguments) for arguments in rotation.calls]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for i in range(_REPLAYS + 2):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(end) * 1e3 / len(rotation.calls))
    del results, graph
    return times


def _wall_times(run: Callable[..., Any], arguments: tuple[Any, ...]) -> list[float]:
    """Microseconds of single calls, a synchronize on both sides."""
    times = []
    for call in range(_WALL_CALLS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(*arguments)
        torch.cuda.synchronize()
        if call >= 2:
            times.append((time.perf_counter() - start) * 1e6)
    return times


def _spread(times: list[float]) -> dict[str, float]:
    """The median and the quartiles."""
    quartiles = statistics.quantiles(times, n=4)
    return {
        "median": round(statistics.median(times), 3),
        "low": round(quartiles[0], 3),
        "high": round(quartiles[2], 3),
    }


@dataclass(slots=True, kw_only=True)
class _Column:
    """One way to compute an operation, and what was measured of it."""

    name: str
    run: Callable[..., Any] | None = None
    rotation: _Rotation = field(default_factory=lambda: _Rotation([]))
    gpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    error: float | None = None
    skipped: str | None = None

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "gpu_us": _spread(self.gpu) if self.gpu else None,
            "wall_us": _spread(self.wall) if self.wall else None,
            "error": self.error,
            "skipped": self.skipped,
        }


def _copy_rotation(moved: int) -> _Rotation:
    """A copy that reads and writes as many bytes as the operation moves: the practical limit.

    In whole pages of 4 KiB: copies of other sizes were up to half slower on an H200, and no limit at all.
    """
    half = math.ceil(moved / 2 / _COPY_GRAIN) * _COPY_GRAIN
    return _Rotation.of(
        lambda: (
            torch.randint(0, 255, (half,), dtype=torch.uint8, device="cuda"),
            torch.empty(half, dtype=torch.uint8, device="cuda"),
        ),
        nbytes,
    )


def _copy(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return target.copy_(source)


def _alternatives(operation: Operation) -> Iterable[tuple[str, Callable[[], Callable[..., Any]]]]:
    yield "eager", lambda: operation.eager
    best = operation.best
    if best is not None:
        yield "torch", lambda: best
    yield "torch.compile", lambda: torch.compile(operation.eager, dynamic=False)
    yield from operation.peers.items()
    yield "ours", lambda: operation.ours


@contextmanager
def _skipping(column: _Column) -> Iterator[None]:
    """An alternative that is not installed, or cannot do this shape, is skipped with the reason."""
    try:
        yield
    except (ImportError, RuntimeError) as error:
        if column.name in ("copy", "ours"):
            raise
        column.run = None
        column.gpu = []
        column.skipped = next(iter(str(error).strip().splitlines()), type(error).__name__)


def _measure(operation: Operation, shape: tuple[int, ...]) -> dict[str, Any]:
    torch.compiler.reset()  # otherwise the eighth shape meets the recompile limit
    rotation = _Rotation.of(lambda: operation.inputs(shape, operation.dtype), operation.moved)
    arguments = rotation.calls[0]
    moved = operation.moved(*arguments)
    exact = operation.exact(*arguments)
    columns = [_Column(name="copy", run=_copy, rotation=_copy_rotation(moved), error=0.0)]
    for name, make in _alternatives(operation):
        column = _Column(name=name, rotation=rotation)
        columns.append(column)
        with _skipping(column):
            run = make()
            _poison()
            column.error = _relative_error(run(*arguments), exact)
            column.run = run
    # In turns, since the speed of the GPU and of the host drifts.
    for _ in range(_GPU_TURNS):
        for column in columns:
            if column.run is not None:
                with _skipping(column):
                    column.gpu += _gpu_times(column.run, column.rotation)
    for turn in range(_WALL_TURNS + 1):
        for column in columns:
            if column.run is not None:
                times = _wall_times(column.run, column.rotation.calls[0])
                column.wall += times if turn > 0 else []
    return {
        "operation": operation.name,
        "shape": list(shape),
        "dtype": str(operation.dtype).removeprefix("torch."),
        "bytes": moved,
        "tolerance": TOLERANCE[operation.dtype],
        "columns": [column.document() for column in columns],
    }


def _check(operation: Operation, shape: tuple[int, ...]) -> dict[str, Any]:
    """What `_measure` returns, with errors against float64 and no times."""
    arguments = operation.inputs(shape, operation.dtype)
    exact = operation.exact(*arguments)
    columns = []
    for name, run in (("eager", operation.eager), ("torch", operation.best), ("ours", operation.ours)):
        if run is not None:
            _poison()
            columns.append(_Column(name=name, error=_relative_error(run(*arguments), exact)))
    return {
        "operation": operation.name,
        "shape": list(shape),
        "dtype": str(operation.dtype).removeprefix("torch."),
        "bytes": operation.moved(*arguments),
        "tolerance": TOLERANCE[operation.dtype],
        "columns": [column.document() for column in columns],
    }


def _device() -> dict[str, Any]:
    """The GPU, of which a machine without one has none."""
    if _DEVICE == "cpu":
        return {"gpu": None, "capability": None, "multiprocessors": None, "l2_bytes": None, "driver": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        text = ""
    driver = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "driver": driver[0] if driver else "unknown",
    }


def _environment(kernel: Any) -> dict[str, Any]:
    versions = {}
    for package in ("triton", "liger_kernel", "kernels", "transformers", "diffusers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        **_device(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "packages": versions,
        "variant": Path(kernel.__file__).parent.name,
    }


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(arguments: Sequence[str]) -> None:
    """`REPORT REPO FILTER MODE FILE…`: run the benchmark files against kernel REPO, write a report as JSON to REPORT.

    FILTER is a part of the names of the operations to run; empty runs all. MODE is `measure`, which needs a GPU, or
    `check`, which only compares with float64. Progress goes to stderr.
    """
    import kernels

    report, repo, wanted, mode, *files = arguments
    # NB: left to itself a PyTorch built for CUDA loads the CUDA build, without a GPU too.
    backend = "cpu" if _DEVICE == "cpu" else None
    kernel = kernels.get_kernel(repo, version=1, trust_remote_code=True, backend=backend)
    reference = importlib.import_module(kernel.__name__ + ".reference")
    torch.manual_seed(0)
    document: dict[str, Any] = {"environment": _environment(kernel), "results": [], "left_out": []}
    with torch.no_grad():
        for file in files:
            for operation in _load(Path(file)).operations(kernel, reference):
                if wanted not in operation.name:
                    continue
                for shape in operation.shapes:
                    if mode == "check":
                        if _DEVICE == "cpu" and math.prod(shape) > _CHECKED_ON_CPU:
                            document["left_out"].append({"operation": operation.name, "shape": list(shape)})
                        else:
                            document["results"].append(_check(operation, shape))
                        Path(report).write_text(json.dumps(document), encoding="utf-8")
                        continue
                    result = _measure(operation, shape)
                    document["results"].append(result)
                    Path(report).write_text(json.dumps(document), encoding="utf-8")
                    copy, ours = result["columns"][0], result["columns"][-1]
                    sys.stderr.write(
                        f"{operation.name} {_text(shape)}: {ours['gpu_us']['median']} µs,"
                        f" copy {copy['gpu_us']['median']} µs, error {ours['error']:.1e}\n"
                    )
                    sys.stderr.flush()
                    gc.collect()
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
