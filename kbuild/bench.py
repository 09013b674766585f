"""A kernel's benchmarks: run them through the harness, judge them, and show them as a table and a plot."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from kbuild import machine, process
from kbuild.errors import BuildError, FindingsError, MachineError, UsageError
from kbuild.loading import place_to_load, raise_for_failure, require_fit
from kbuild.resources import data_json
from kbuild.text import plural

_NEEDED = "pip install torch 'kernels>=0.17'"
_WITHOUT_GPU = "time it on a machine with one; `kbuild bench --check` only compares results, and runs here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Microseconds: the median and the quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One way to compute an operation. `error` is ‖out - exact‖ / ‖exact‖; `skipped` says why there are no figures.

    `wrong` says what is wrong beside the error, or instead of one: a shape, a dtype, a NaN.
    """

    name: str
    gpu: Timing | None
    wall: Timing | None
    error: float | None
    skipped: str | None
    wrong: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One operation at one shape; `moved` counts the bytes that a call must read and write."""

    operation: str
    shape: tuple[int, ...]
    dtype: str
    moved: int
    tolerance: float
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def ratio(self, name: str, to: str = "copy") -> float | None:
        """GPU time of one column over that of another."""
        one, other = self.column(name), self.column(to)
        if one is None or other is None or one.gpu is None or other.gpu is None:
            return None
        return one.gpu.median / other.gpu.median

    @property
    def wrong(self) -> str | None:
        """What is wrong with ours, None where nothing is."""
        ours = self.column("ours")
        if ours is None:
            return "there is no result"
        if ours.wrong is not None or ours.error is None:
            return ours.wrong or "there is no error to judge"
        # NB: a NaN compares as false.
        return (
            None if ours.error <= self.tolerance else f"error {ours.error:.1e}, {self.tolerance:.1e} allowed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """An operation at a shape that was too large to be checked on a CPU."""

    operation: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run of a project's benchmarks on one machine."""

    project: str
    environment: dict[str, Any]
    results: tuple[Result, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def wrong(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.wrong is not None)

    def operations(self) -> dict[str, list[Result]]:
        grouped: dict[str, list[Result]] = {}
        for result in self.results:
            grouped.setdefault(result.operation, []).append(result)
        return grouped


def find(root: Path) -> tuple[Path, ...]:
    """The benchmark files of a project. Raises UsageError where there are none."""
    files = tuple(
        path for path in sorted((root / "benchmarks").glob("*.py")) if not path.name.startswith("_")
    )
    if not files:
        raise UsageError(
            f"{root} has no benchmarks", hint="put Python files that define operations() into benchmarks/"
        )
    return files


def run(
    root: Path,
    project: str,
    repo: str,
    *,
    wanted: str = "",
    variant: str | None = None,
    check: bool = False,
    find_torch: Callable[[], machine.InstalledTorch | None] = machine.installed_torch,
    runner: Callable[..., process.Completed] = process.run,
    story: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Run the benchmarks of `root` whose operation has `wanted` in its name; the report as a JSON document.

    With `check` results are only compared with float64, which works without a GPU too, and nothing is timed.
    Raises UsageError where nothing is built or nothing is to be run, MachineError where PyTorch, kernels, a GPU or
    a variant that fits is missing, FindingsError where the kernel cannot be loaded or a benchmark file is at fault, and
    BuildError where the run ends before its time.
    """
    files = find(root)
    place = place_to_load(root, variant)
    here = find_torch()
    if here is None:
        raise MachineError("benchmarks need PyTorch, and this environment has none", hint=_NEEDED)
    if not check and here.cuda is None:
        raise MachineError("benchmarks need a GPU, and this PyTorch is built for the CPU", hint=_WITHOUT_GPU)
    require_fit(variant, here, does="run")
    package = str(Path(__file__).resolve().parent.parent)
    environment = {
        **os.environ,
        "LOCAL_KERNELS": f"{repo}={place}",
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryDirectory(prefix="kbuild-bench-") as scratch:
        report = Path(scratch, "report.json")
        lines: list[str] = []

        def keep(line: str) -> None:
            lines.append(line)
            story(line)

        mode = "check" if check else "measure"
        argv = [here.python, "-m", "kbuild.harness", str(report), repo, wanted, mode, *map(str, files)]
        done = runner(argv, cwd=root, env=environment, on_stderr_line=keep)
        if not done.ok or not report.is_file():
            raise BuildError(
                f"the benchmarks ended early, with status {done.returncode}:\n" + "\n".join(lines[-20:])
            )
        measured = json.loads(report.read_text(encoding="utf-8"))
        raise_for_failure(measured, here, root, needed=_NEEDED)
        match measured:
            case {"no gpu": _}:
                raise MachineError("benchmarks need a GPU, and this machine has none", hint=_WITHOUT_GPU)
            case {"faulty": what}:
                raise FindingsError(what)
            case {"unmatched": names}:
                raise UsageError(f"no operation has {wanted!r} in its name; there are: {', '.join(names)}")
        if not measured["results"]:
            raise UsageError(
                "nothing was compared: every shape is too large to be checked on a CPU",
                hint=f"add a small one to {', '.join(str(file) for file in files)}",
            )
    return {"version": 1, "project": project, **measured}


def load(path: Path) -> dict[str, Any]:
    """The document in a recorded report. Raises FindingsError where it is none that `read` can read."""
    try:
        # NB: earlier versions wrote an infinity or NaN, which JSON has not.
        document: dict[str, Any] = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=lambda _constant: None
        )
        read(document)
    except (ValueError, FindingsError) as error:
        raise FindingsError(f"{path}: not a benchmark report of version 1") from error
    return document


def read(document: dict[str, Any]) -> Report:
    """The report in a JSON document. Raises FindingsError where it is none of this version."""
    try:
        if document["version"] == 1:
            return _read(document)
    except (KeyError, TypeError):
        pass
    raise FindingsError("not a benchmark report of version 1")


def _read(document: dict[str, Any]) -> Report:
    return Report(
        project=document["project"],
        environment=document["environment"],
        results=tuple(
            Result(
                operation=result["operation"],
                shape=tuple(result["shape"]),
                dtype=result["dtype"],
                moved=result["bytes"],
                tolerance=result["tolerance"],
                columns=tuple(map(_column, result["columns"])),
            )
            for result in document["results"]
        ),
        # Reports from before these were counted have none.
        left_out=tuple(
            LeftOut(operation=one["operation"], shape=tuple(one["shape"]))
            for one in document.get("left_out", ())
        ),
    )


def _column(column: dict[str, Any]) -> Column:
    return Column(
        name=column["name"],
        gpu=None if column["gpu_us"] is None else Timing(**column["gpu_us"]),
        wall=None if column["wall_us"] is None else Timing(**column["wall_us"]),
        error=column["error"],
        skipped=column["skipped"],
        # Reports from before shapes and dtypes were compared have none.
        wrong=column.get("wrong"),
    )


def checks(report: Report) -> str:
    """What `run` with `check` found, as Markdown: the error of each way to compute against float64."""
    names = list(dict.fromkeys(column.name for result in report.results for column in result.columns))
    count = plural(len(report.results) + len(report.left_out), "shape")
    summary = f"{len(report.results)} of {count} compared"
    if report.left_out:
        large = ", ".join(f"{one.operation} {shape_text(one.shape)}" for one in report.left_out)
        summary += f"; left out, large for a CPU: {large}"
    lines = [
        f"‖out - exact‖ / ‖exact‖ on {report.environment['gpu'] or 'the CPU'}; nothing was timed.",
        f"{summary}.",
        "",
        _row(["operation", "dtype", "shape", *names, "allowed"]),
        _row(["---", "---", "---", *["---:" for _ in names], "---:"]),
    ]
    for result in report.results:
        errors = [_error(result.column(name)) for name in names]
        cells = [result.operation, result.dtype, shape_text(result.shape), *errors, f"{result.tolerance:.1e}"]
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def markdown(report: Report) -> str:
    """The whole report as Markdown: what was measured where, and a table for each operation."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    env = report.environment
    packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    yield f"# {report.project}"
    yield ""
    yield (
        f"{env['gpu']}, driver {env['driver']}, PyTorch {env['torch']} (CUDA {env['cuda']}), Python {env['python']},"
        f" {packages}; variant `{env['variant']}`."
    )
    yield ""
    yield (
        "GPU time of a call in µs: median over replays of a graph whose calls walk through buffers larger together than"
        " the L2. In brackets the wall time of one call with a synchronize on both sides. *copy* reads and writes as"
        " many bytes as the operation must. *error* is that of ours against float64, ‖out - exact‖ / ‖exact‖."
    )
    peak = _peak(report)
    for operation, results in report.operations().items():
        names = list(dict.fromkeys(column.name for result in results for column in result.columns))
        yield ""
        yield f"## {operation}, {results[0].dtype}"
        yield ""
        share = [] if peak is None else [f"% of {peak:,} GB/s"]
        yield _row(["shape", *names, "ours / copy", *share, "error"])
        yield _row(["---", *["---:" for _ in names], "---:", *["---:" for _ in share], "---:"])
        for result in results:
            yield _row(
                [
                    shape_text(result.shape),
                    *(_cell(result.column(name), result.column("copy")) for name in names),
                    _number(result.ratio("ours"), "{:.2f}"),
                    *([] if peak is None else [_share(result, peak)]),
                    _error(result.column("ours")),
                ]
            )
        yield ""
        yield f"Ours against each, geometric mean of the GPU time over the shapes: {_means(results, names)}."


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def shape_text(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _cell(column: Column | None, copy: Column | None) -> str:
    if column is None or column.gpu is None or column.wall is None:
        return "–"
    wall = "" if column is copy else f" ({column.wall.median:.0f})"
    return f"{column.gpu.median:.1f}{wall}"


def _number(value: float | None, template: str) -> str:
    return "–" if value is None else template.format(value)


def _error(column: Column | None) -> str:
    if column is None:
        return "–"
    return "wrong" if column.wrong is not None else _number(column.error, "{:.1e}")


def _peak(report: Report) -> int | None:
    known: dict[str, int] = data_json("gpus.json")["gb_per_second"]
    return known.get(report.environment["gpu"])


def _share(result: Result, peak: int) -> str:
    ours = result.column("ours")
    if ours is None or ours.gpu is None:
        return "–"
    return f"{result.moved / ours.gpu.median / 1e3 / peak:.0%}"


def _means(results: Sequence[Result], names: Sequence[str]) -> str:
    parts = []
    for name in names:
        ratios = [ratio for result in results if (ratio := result.ratio("ours", to=name)) is not None]
        if name == "ours" or not ratios:
            continue
        product = 1.0
        for ratio in ratios:
            product *= ratio
        mean: float = product ** (1 / len(ratios))
        parts.append(f"{mean:.2f} of {name}'s" if name == "copy" else f"{name} {1 / mean:.2f}× slower")
    return ", ".join(parts)


# Colours that keep apart for most colour-blind readers, on white (Okabe and Ito).
_COLOURS = ("#999999", "#d55e00", "#e69f00", "#56b4e9", "#009e73", "#cc79a7")
_OURS = "#0072b2"
_LEFT, _RIGHT, _ROW, _TOP, _GAP = 170, 40, 22, 34, 46
_PLOT = 560
_MOST = 1.25  # of the copy's speed: where the axis ends


def svg(report: Report) -> str:
    """A dot plot: for every operation and shape, the share of the copy's speed that each column reaches."""
    names = [
        name
        for name in dict.fromkeys(column.name for result in report.results for column in result.columns)
        if name != "copy"
    ]
    colours = dict(zip((name for name in names if name != "ours"), _COLOURS, strict=False)) | {"ours": _OURS}
    width = _LEFT + _PLOT + _RIGHT
    body: list[str] = []
    y = 58
    for operation, results in report.operations().items():
        body.append(_text(16, y + 14, f"{operation}, {results[0].dtype}", weight="bold"))
        y += _TOP
        bottom = y + _ROW * len(results)
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25):
            x = _x(tick)
            stroke = "#555555" if tick == 1.0 else "#dddddd"
            body.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{bottom}" stroke="{stroke}"/>')
            label = "copy" if tick == 1.0 else f"{tick:.0%}"
            body.append(_text(x, bottom + 14, label, anchor="middle", size=11, fill="#555555"))
        for result in results:
            middle = y + _ROW / 2
            body.append(_text(_LEFT - 12, middle + 4, shape_text(result.shape), anchor="end", size=12))
            for name in names:
                ratio = result.ratio(name)
                if ratio is None:
                    continue
                size = 6 if name == "ours" else 4.5
                value = f"{result.operation} {shape_text(result.shape)}, {name}: {1 / ratio:.0%} of the copy's speed"
                body.append(
                    f'<circle cx="{_x(min(1 / ratio, _MOST))}" cy="{middle}" r="{size}" fill="{colours[name]}">'
                    f"<title>{escape(value)}</title></circle>"
                )
            y += _ROW
        y += _GAP
    legend, x = [], 16
    for name in names:
        legend.append(f'<circle cx="{x + 6}" cy="38" r="5" fill="{colours[name]}"/>')
        legend.append(_text(x + 16, 42, name, size=12))
        x += 34 + 7 * len(name)
    title = f"Speed as a share of a copy of the same bytes, {report.environment['gpu']}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}">',
            '<g font-family="Helvetica, Arial, sans-serif">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{y}" fill="#ffffff"/>',
            _text(16, 22, title, weight="bold", size=14),
            *legend,
            *body,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _x(share: float) -> float:
    return round(_LEFT + share / _MOST * _PLOT, 1)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: str = "normal",
    fill: str = "#222222",
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{fill}">'
        f"{escape(text)}</text>"
    )


def write(report: Report, document: dict[str, Any], folder: Path, stem: str) -> tuple[Path, ...]:
    """Write `stem.json`, `stem.md` and `stem.svg` into the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        ".json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
        ".md": markdown(report),
        ".svg": svg(report),
    }
    for suffix, content in contents.items():
        (folder / f"{stem}{suffix}").write_text(content, encoding="utf-8")
    return tuple(folder / f"{stem}{suffix}" for suffix in contents)
