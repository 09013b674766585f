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
import os
import re
import statistics
import sys
import time
import traceback
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
# Of the stack of an error in the project's code, so many frames are shown.
_FRAMES = 8

_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One benchmark: the same computation done by the kernel and by each alternative, at several shapes.

    `inputs(shape, dtype)` makes the arguments that all of them take; tensors among them with the most bytes are
    rotated between calls, small ones (weights) are not. `exact` computes in float64. `eager` is the plain PyTorch
    formula, which torch.compile gets too; `best` the best form in PyTorch's own calls, where there is another. `peers`
    are other libraries: a name and a function that returns the callable, or raises ImportError. `moved(*arguments)`
    counts the bytes a call must read and write.

    A result of `ours` has the shape of that of `exact` and the dtype of that of `eager`; where the latter is floating,
    integers are compared as numbers.
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


class _NoResultsError(Exception):
    """There are no results: the reason and what there is to say of it, which the report then consists of."""

    def __init__(self, reason: str, detail: Any) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def _faulty(what: str) -> _NoResultsError:
    """A benchmark file, or what it calls, is not as it must be."""
    return _NoResultsError("faulty", what)


@contextmanager
def _blaming(place: str) -> Iterator[None]:
    """What fails within is the project's own code, and `place` says where in it."""
    try:
        yield
    except _NoResultsError as error:
        raise _NoResultsError(error.reason, f"{place}: {error.detail}") from error
    except (Exception, SystemExit) as error:
        frames = [
            f"\n  {_shown(frame.filename)}:{frame.lineno}, in {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename != __file__ and not frame.filename.startswith("<")
        ]
        text = f"{place}: {type(error).__name__}: {error}"
        raise _faulty(text + "".join(frames[-_FRAMES:])) from error


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _tensors(result: Any) -> list[torch.Tensor] | None:
    """The results of a call, None where they are no tensors."""
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    return results if all(isinstance(one, torch.Tensor) for one in results) else None


def _exact(operation: Operation, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    with _blaming("exact"):
        result = operation.exact(*arguments)
        tensors = _tensors(result)
        if not tensors:
            raise _faulty(f"returns {_kind(result)}, not a tensor or a tuple of tensors")
        return tensors


def _kind(result: Any) -> str:
    if isinstance(result, (tuple, list)):
        return f"({', '.join(map(_kind, result))})"
    return type(result).__name__


def _inputs(operation: Operation, shape: tuple[int, ...]) -> tuple[Any, ...]:
    with _blaming("inputs"):
        arguments = operation.inputs(shape, operation.dtype)
        if not isinstance(arguments, tuple):
            raise _faulty(f"returns {_kind(arguments)}, not a tuple of arguments")
        return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """How a result differs from the exact one: the relative error, where there is one, and what else is wrong."""

    error: float | None = None
    wrong: str | None = None
    dtypes: list[torch.dtype] = field(default_factory=list)


def _compare(
    run: Callable[..., Any],
    arguments: tuple[Any, ...],
    exact: list[torch.Tensor],
    like: list[torch.dtype],
) -> _Compared:
    """Call it and look at the result. `like` are the dtypes of eager's, none where they are not known."""
    _poison(exact)
    result = run(*arguments)
    tensors = _tensors(result)
    if tensors is None:
        return _Compared(wrong=f"returns {_kind(result)}, expected tensors")
    shapes, expected = [list(one.shape) for one in tensors], [list(one.shape) for one in exact]
    if shapes != expected:
        return _Compared(wrong=f"has the shape {_listed(shapes)}, expected {_listed(expected)} as exact has")
    dtypes = [one.dtype for one in tensors]
    worst = 0.0
    for actual, true in zip(tensors, exact, strict=True):
        error, stray = _relative_error(actual.double(), true.double())
        if stray:
            said = f"NaN or infinity, unlike float64, in {stray} of {actual.numel()} values"
            return _Compared(wrong=said, dtypes=dtypes)
        worst = max(worst, error)
    wrong = None
    if any(map(_unlike, dtypes, like)):
        wrong = f"has the dtype {_listed(dtypes)}, expected {_listed(like)} as eager has"
    return _Compared(error=worst, wrong=wrong, dtypes=dtypes)


def _relative_error(actual: torch.Tensor, exact: torch.Tensor) -> tuple[float, int]:
    """‖actual - exact‖ / ‖exact‖ where both are finite, and how many values are NaN or infinite in one alone."""
    difference = actual - exact
    # Where both are infinite or NaN there is none.
    difference.masked_fill_((actual == exact) | (actual.isnan() & exact.isnan()), 0.0)
    stray = difference.numel() - int(difference.isfinite().sum())
    off = torch.linalg.vector_norm(difference.nan_to_num_(0.0, 0.0, 0.0))
    norm = torch.linalg.vector_norm(exact.nan_to_num(0.0, 0.0, 0.0))
    # JSON has no infinity.
    return min(float(off / norm.clamp_min(1e-300)), sys.float_info.max), stray


def _unlike(actual: torch.dtype, eager: torch.dtype) -> bool:
    """Integers may stand for the whole floats of an eager formula: they are compared as numbers."""
    return actual != eager and (actual.is_floating_point or not eager.is_floating_point)


def _listed(what: Iterable[Any]) -> str:
    return ", ".join(str(one).removeprefix("torch.") for one in what) or "of no tensor"


def _poison(exact: list[torch.Tensor]) -> None:
    """Leave NaN in freed memory of the sizes of results, so that what a kernel does not write of its output is seen."""
    # All bits set are a NaN of every floating dtype.
    blocks = [
        torch.full((one.numel() * size,), -1, dtype=torch.int8, device=one.device)
        for one in exact
        for size in (1, 2, 4)
        for _ in range(2)
    ]
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
    compared: _Compared = _Compared()
    skipped: str | None = None

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "gpu_us": _spread(self.gpu) if self.gpu else None,
            "wall_us": _spread(self.wall) if self.wall else None,
            "error": self.compared.error,
            "wrong": self.compared.wrong,
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
    rotation = _Rotation.of(lambda: _inputs(operation, shape), operation.moved)
    arguments = rotation.calls[0]
    moved = operation.moved(*arguments)
    exact = _exact(operation, arguments)
    columns = [_Column(name="copy", run=_copy, rotation=_copy_rotation(moved), compared=_Compared(error=0.0))]
    like: list[torch.dtype] = []
    for name, make in _alternatives(operation):
        column = _Column(name=name, rotation=rotation)
        columns.append(column)
        with _blaming(name), _skipping(column):
            run = make()
            column.compared = _compare(run, arguments, exact, like)
            if name == "eager":
                like = column.compared.dtypes
            column.run = run
    # In turns, since the speed of the GPU and of the host drifts.
    for _ in range(_GPU_TURNS):
        for column in columns:
            if column.run is not None:
                with _blaming(column.name), _skipping(column):
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
    arguments = _inputs(operation, shape)
    exact = _exact(operation, arguments)
    columns = []
    like: list[torch.dtype] = []
    for name, run in (("eager", operation.eager), ("torch", operation.best), ("ours", operation.ours)):
        if run is not None:
            with _blaming(name):
                compared = _compare(run, arguments, exact, like)
            columns.append(_Column(name=name, compared=compared))
            if name == "eager":
                like = compared.dtypes
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


def _operations(file: str, kernel: Any, reference: Any) -> list[Operation]:
    """What the file defines. Raises _NoResultsError where it does not do so as it must."""
    with _blaming(_shown(file)):
        make = getattr(_load(Path(file)), "operations", None)
        if not callable(make):
            raise _faulty("defines no operations(kernel, reference)")
        made = make(kernel, reference)
        if not isinstance(made, Iterable):
            raise _faulty(f"operations() returns {_kind(made)}, not Operations")
        operations = list(made)
        for operation in operations:
            if not isinstance(operation, Operation):
                raise _faulty(f"operations() returns {_kind(operation)} among its Operations")
            if not operation.shapes:
                raise _faulty(f"operation {operation.name!r} has no shapes")
            for shape in operation.shapes:
                if not isinstance(shape, Sequence) or not all(isinstance(size, int) for size in shape):
                    raise _faulty(
                        f"operation {operation.name!r}: {shape!r} is no shape, a tuple of integers is"
                    )
            if operation.dtype not in TOLERANCE:
                raise _faulty(f"operation {operation.name!r}: its dtype is none of {_listed(TOLERANCE)}")
        return operations


def _kernel(repo: str) -> Any:
    """The build that LOCAL_KERNELS has for it. Raises _NoResultsError where there is none to be loaded."""
    if importlib.util.find_spec("kernels") is None:
        raise _NoResultsError("missing", ["kernels"])
    version = importlib.metadata.version("kernels")
    if tuple(map(int, version.split(".")[:2])) < (0, 17):
        raise _NoResultsError("old", version)
    import kernels

    # NB: left to itself a PyTorch built for CUDA loads the CUDA build, without a GPU too.
    backend = "cpu" if torch.version.cuda and _DEVICE == "cpu" else None
    try:
        return kernels.get_kernel(repo, version=1, trust_remote_code=True, backend=backend)
    except FileNotFoundError as error:
        raise _NoResultsError("unfit", str(error)) from error
    except Exception as error:
        notes = getattr(error, "__notes__", ())
        raise _NoResultsError("broken", "\n".join([f"{type(error).__name__}: {error}", *notes])) from error


def _reference(kernel: Any) -> Any:
    name = kernel.__name__ + ".reference"
    if importlib.util.find_spec(name) is None:
        raise _faulty("the kernel has no module `reference`, which operations() gets to compare with")
    with _blaming("the kernel's module `reference`"):
        return importlib.import_module(name)


def _run(repo: str, wanted: str, mode: str, files: Sequence[str]) -> dict[str, Any]:
    if mode == "measure" and _DEVICE == "cpu":
        raise _NoResultsError("no gpu", None)
    kernel = _kernel(repo)
    reference = _reference(kernel)
    torch.manual_seed(0)
    found = [(file, one) for file in files for one in _operations(file, kernel, reference)]
    if not found:
        raise _faulty(f"no operations in {', '.join(map(_shown, files))}")
    chosen = [(file, one) for file, one in found if wanted.lower() in one.name.lower()]
    if not chosen:
        raise _NoResultsError("unmatched", [operation.name for _, operation in found])
    document: dict[str, Any] = {"environment": _environment(kernel), "results": [], "left_out": []}
    for file, operation in chosen:
        for shape in operation.shapes:
            if mode == "check" and _DEVICE == "cpu" and math.prod(shape) > _CHECKED_ON_CPU:
                document["left_out"].append({"operation": operation.name, "shape": list(shape)})
                continue
            with _blaming(f"{_shown(file)}: {operation.name} at {_text(shape)}"):
                if mode == "check":
                    document["results"].append(_check(operation, shape))
                    continue
                result = _measure(operation, shape)
            document["results"].append(result)
            copy, ours = result["columns"][0], result["columns"][-1]
            error = ours["wrong"] or f"error {ours['error']:.1e}"
            sys.stderr.write(
                f"{operation.name} {_text(shape)}: {ours['gpu_us']['median']} µs,"
                f" copy {copy['gpu_us']['median']} µs, {error}\n"
            )
            sys.stderr.flush()
            gc.collect()
            torch.cuda.empty_cache()
    return document


def main(arguments: Sequence[str]) -> None:
    """`REPORT REPO FILTER MODE FILE…`: run the benchmark files against kernel REPO, write a report as JSON to REPORT.

    FILTER is a part of the names of the operations to run; empty runs all. MODE is `measure`, which needs a GPU, or
    `check`, which only compares with float64. Progress goes to stderr. Where there are no results, the report is the
    reason alone.
    """
    report, repo, wanted, mode, *files = arguments
    try:
        with torch.no_grad():
            document = _run(repo, wanted, mode, files)
    except _NoResultsError as error:
        document = {error.reason: error.detail}
    Path(report).write_text(json.dumps(document, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    # Once more by its name, under which the benchmark files import it too: one class Operation, not two.
    importlib.import_module("kbuild.harness").main(sys.argv[1:])
