"""What kbuild's way of building a matrix of variants costs, beside the usual way, and what the first steps cost.

    python tests/benchmarks/build_matrix.py          measure, write build_matrix.json and build_matrix.md
    python tests/benchmarks/build_matrix.py fetch    measure one part anew, keep the others
    python tests/benchmarks/build_matrix.py render   write build_matrix.md anew from build_matrix.json

Needs Nix, ninja and g++, the pinned trees in the default store (`kbuild lock fetch`), and a package index for the
bytes of a first build. Uses about 6 GB below the temporary folder.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kbuild import __version__, host, nixcmd
from kbuild.project import Project
from kbuild.resources import data_json
from kbuild.toolchain import Store, ensure, load_lock, store_path
from kbuild.variants import Matrix, chosen, select

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import plain_ninja
from benchmarks.costs import Cost, load, measure
from benchmarks.counting_proxy import counting_proxy

HERE = Path(__file__).parent
RESULT = HERE / "build_matrix.json"
EXAMPLES = HERE.parents[1] / "example_kernels"
# Any change of a translation unit that changes its object as well.
EDIT = "\nint kbuild_benchmark_edit() { return 1; }\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to build the same variants: from nothing, again with nothing changed, after one .cu was edited.

    The last is left out for device code that compiles long: it would repeat what the first has shown.
    """

    build: Cost
    again: Cost
    edited: Cost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same variants, built both ways one after the other; `load` are load averages before and after."""

    project: str
    selection: str
    variants: list[str]
    kbuild: Side
    ninja: Side
    load: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Bytes: `fetched` by kbuild's own count, `received` by the proxy that it and pip went through."""

    what: str
    trees: int
    fetched: int
    received: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Wall seconds of a whole process, sorted; `cpu` the median of its processor time."""

    command: str
    seconds: list[float]
    cpu: float


def measure_builds(work: Path, jobs: int) -> dict[str, object]:
    """Both ways to build, in one run."""
    base = base_store(work)
    comparisons: list[dict[str, Any]] = []
    seen = witness(work, base)
    for number, (name, selection, edit) in enumerate(
        (("relu", "cu130", True), ("relu", "all", True), ("ltx_video", "cu130", False))
    ):
        folder = work / f"{number}"
        folder.mkdir()
        project = folder / "project"
        copy_example(name, project)
        comparisons.append(asdict(compare(project, selection, base, folder, jobs, edit=edit)))
        print(json.dumps(comparisons[-1]), file=sys.stderr)
    return {"witness": asdict(seen), "comparisons": comparisons}


def machine(jobs: int) -> dict[str, object]:
    """What the numbers were measured on."""
    model = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return {
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load": load(),
        "processor": model,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "kernel": platform.release(),
        "compiler": host.detect().compiler,
        "nix": ".".join(map(str, nixcmd.probe().version)),
        "kbuild": f"{__version__} ({commit.stdout.strip()})",
    }


def copy_example(name: str, project: Path) -> None:
    """The example without what earlier builds left in it, and without a flake, so that it stands by itself."""
    shutil.copytree(
        EXAMPLES / name, project, ignore=shutil.ignore_patterns("build", "flake.nix", "__pycache__")
    )


def base_store(work: Path) -> Path:
    """A store with the pinned trees and nothing else, and the same trees in the default store."""
    lock = load_lock()
    matrix = data_json("matrix.json")
    keys = [entry["tree"] for entry in matrix["torch"].values()]
    keys += [key for toolkit in matrix["toolkits"].values() for key in toolkit.get("trees", ())]
    ensure(keys)
    base = work / "base-store"
    paths = [store_path(tree) for tree in lock.select(keys)]
    nix = ["nix", "--extra-experimental-features", "nix-command"]
    subprocess.run([*nix, "copy", "--no-check-sigs", "--to", str(base), *paths], check=True)
    return base


def fresh_store(base: Path, target: Path) -> Path:
    """A copy of the base store: its files by hard links, its database by content."""
    (target / "nix").mkdir(parents=True)
    subprocess.run(["cp", "-al", str(base / "nix" / "store"), str(target / "nix")], check=True)
    subprocess.run(["cp", "-a", str(base / "nix" / "var"), str(target / "nix")], check=True)
    return target


def warm(folder: Path) -> None:
    """Read a store's files once, so that neither side pays for a cold disk."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.read_bytes()


def witness(work: Path, base: Path) -> Cost:
    """The cost of a sandboxed build whose builder's own child uses two seconds: proof that builders are counted."""
    here = host.detect()
    burn = "import time\\nwhile time.process_time() < 2: pass"
    program = f"import os, subprocess; subprocess.run(['{here.python}', '-c', '''{burn}''']); "
    program += "open(os.environ['out'], 'w')"
    expression = (
        f'derivation {{ name = "witness"; system = "{nixcmd.SYSTEM}"; builder = "{here.python}"; '
        f'args = [ "-c" {json.dumps(program)} ]; }}'
    )
    argv = ["nix-build", "--store", str(fresh_store(base, work / "witness")), "--no-out-link"]
    argv += ["--expr", expression, *nixcmd.Settings().flags(here)]
    cost = measure(argv, work / "witness.log").cost
    if cost.cpu < 2:
        raise RuntimeError(f"a builder that used 2 s was counted as {cost.cpu:.2f} s")
    return cost


def compare(project: Path, selection: str, base: Path, folder: Path, jobs: int, *, edit: bool) -> Comparison:
    """Build the same variants both ways, then again, then after an edit of the CUDA source."""
    variants = [
        entry.name
        for entry in chosen(select(Project.open(project).require_config(), Matrix.load()))
        if selection == "all" or f"-{selection}-" in entry.name
    ]
    store = fresh_store(base, folder / "store")
    plans = plain_ninja.plans(project, variants, folder / "ninja")
    warm(base)
    for tree in load_lock().trees.values():
        warm(Path(store_path(tree)))
    argv = [sys.executable, "-m", "kbuild", "build", str(project), "--store", str(store), "-j", str(jobs)]
    for name in variants:
        argv += ["--variant", name]

    def kbuild() -> Cost:
        return measure(argv, folder / "kbuild.log").cost

    def ninja() -> Cost:
        costs = [plan.build(jobs) for plan in plans]
        return sum(costs[1:], costs[0])

    before = load()
    source = min(project.rglob("*.cu"))
    original = source.read_text(encoding="utf-8")
    sides = []
    for way in (kbuild, ninja):
        build, again, edited = way(), way(), None
        if again.cpu > build.cpu / 4:
            raise RuntimeError(f"{way.__name__} took {again.cpu:.1f} s though nothing had changed")
        if edit:
            source.write_text(original + EDIT, encoding="utf-8")
            edited = way()
            source.write_text(original, encoding="utf-8")
        sides.append(Side(build=build, again=again, edited=edited))
    return Comparison(
        project=Project.open(project).require_config().general.name,
        selection=selection,
        variants=variants,
        kbuild=sides[0],
        ninja=sides[1],
        load=[before, load()],
    )


def start_up(work: Path, runs: int = 15) -> Iterable[StartUp]:
    """Commands that a person waits for, as whole processes."""
    program = str(Path(sys.executable).with_name("kbuild"))
    for words in (["--help"], ["check", str(EXAMPLES / "relu")]):
        # The first one fills the disk cache.
        costs = [measure([program, *words], work / "start.log").cost for _ in range(runs + 1)][1:]
        yield StartUp(
            command=" ".join(["kbuild", *words]).replace(str(EXAMPLES / "relu"), "example_kernels/relu"),
            seconds=sorted(cost.wall for cost in costs),
            cpu=statistics.median(cost.cpu for cost in costs),
        )


def fetches(work: Path) -> Iterable[Fetch]:
    """What a machine with an empty store and cache receives: the first CUDA variant, then each further PyTorch."""
    only_the_index()
    store = Store(options=("--store", str(work / "empty-store")))
    matrix = data_json("matrix.json")
    first = "2.13"
    steps = [(f"PyTorch {first} and CUDA 13.0", [f"torch-{first}", *matrix["toolkits"]["cu130"]["trees"]])]
    steps += [
        (f"PyTorch {torch}", [entry["tree"]]) for torch, entry in matrix["torch"].items() if torch != first
    ]
    steps += [("CUDA 13.2", matrix["toolkits"]["cu132"]["trees"])]
    for what, keys in steps:
        with counting_proxy() as proxy:
            fetched = ensure(keys, nix=store, cache=work / "empty-cache")
            yield Fetch(
                what=what,
                trees=len(keys),
                fetched=fetched.bytes_received,
                received=proxy.received,
                seconds=fetched.seconds,
            )


def only_the_index() -> None:
    """Let pip see the package index alone: no local folder with wheels, no cache, for the rest of this process."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if index and "PIP_INDEX_URL" not in os.environ:
        os.environ["PIP_INDEX_URL"] = index
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        os.environ.pop(name, None)
    os.environ.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_CACHE_DIR="1")


def render(result: Any) -> str:
    """The report, from the JSON alone."""
    builds, starts, fetch = result["builds"], result["start-up"], result["fetch"]
    comparisons = builds["comparisons"]
    return REPORT.format(
        **{
            f"{name}_on": _on(part)
            for name, part in (("builds", builds), ("starts", starts), ("fetch", fetch))
        },
        witness=builds["witness"],
        disagreement=max(
            abs(cost["cpu"] / cost["cgroup"] - 1) for cost in _costs(comparisons) if cost["cgroup"]
        ),
        builds="\n".join(
            _build_row(entry, step) for entry in comparisons for step in STEPS if entry["kbuild"][step]
        ),
        loads="; ".join(
            f"{entry['project']} {entry['selection']} {entry['load'][0][0]} and {entry['load'][1][0]}"
            for entry in comparisons
        ),
        verdicts="\n".join(_verdict(entry) for entry in comparisons),
        fetches="\n".join(
            f"| {entry['what']} | {entry['trees']} | {entry['received'] / 1e6:.1f} "
            f"| {entry['fetched'] / 1e6:.1f} | {entry['seconds']:.0f} |"
            for entry in fetch["steps"]
        ),
        starts="\n".join(
            f"| `{entry['command']}` | {statistics.median(entry['seconds']):.3f} | {entry['seconds'][0]:.3f} "
            f"| {entry['seconds'][-1]:.3f} | {entry['cpu']:.3f} | {len(entry['seconds'])} |"
            for entry in starts["commands"]
        ),
    )


STEPS = {"build": "from nothing", "again": "nothing changed", "edited": "one .cu edited"}

REPORT = """\
# Building a matrix of variants: kbuild beside one ninja a variant

{builds_on}. One run.

| project | variants | step | kbuild CPU s | ninja CPU s | ratio | kbuild wall s | ninja wall s | others CPU s |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
{builds}

- *kbuild*: `kbuild build` of those variants into a store that holds the pinned wheels' trees and nothing else. Its
  time includes evaluation, merging the CUDA toolkit, making the link stubs, linking, stripping, verifying, copying.
- *ninja*: one ninja file a variant, built one after the other as `torch.utils.cpp_extension` does: every source is
  compiled for every PyTorch, then linked. Same sources, compiler, flags, CUDA architectures, CUDA toolkit and PyTorch
  headers (read off kbuild's own recipes), same -j, plus cpp_extension's dependency files. No sandbox, stubs, strip
  or verification; PyTorch's libraries are not linked, Python is not started and torch not imported: all of it in
  ninja's favour.
- *CPU s*: user + system time of a command and all its descendants (wait4). A sandboxed builder whose child used 2 s
  was counted as {witness[cpu]:.2f} s; the kernel's own account of a control group differed by at most
  {disagreement:.1%} in any row that took a second.
- *others*: what the rest of the machine used during both; wall times suffer from it. Load averages before and
  after: {loads}.

{verdicts}

What to expect of another kernel: kbuild saves device code that needs no PyTorch headers, and only that. relu's takes
a few seconds, less than its bindings do; ltx_video has six operations in four files, for all architectures. A .cu
whose section depends on torch is compiled for every PyTorch either way. kbuild's own share (link stubs once per
PyTorch and machine, evaluation, verification) is in every row.

## Bytes that a machine with nothing receives

An empty store, an empty cache, and pip with the package index alone. Received is what came back through a proxy that
all went through, pip's look-ups and TLS included; fetched is the fetcher's own count of wheel bytes.
{fetch_on}.

| what | trees | MB received | MB fetched | s |
| --- | ---: | ---: | ---: | ---: |
{fetches}

Aims: at most 250 MB for the first CUDA variant, at most 40 MB for each further PyTorch.

## Start-up, whole processes

{starts_on}.

| command | median s | least | most | median CPU s | runs |
| --- | ---: | ---: | ---: | ---: | ---: |
{starts}

Aims: 0.15 s for `--help`, 0.3 s for `check`.

Written by `tests/benchmarks/build_matrix.py`.
"""


def _costs(comparisons: Any) -> Iterable[Any]:
    for entry in comparisons:
        for side in ("kbuild", "ninja"):
            # The kernel's clock ticks show in what takes less than a second.
            yield from (cost for cost in entry[side].values() if cost and cost["cpu"] > 1)


def _on(part: Any) -> str:
    here = part["conditions"]
    return (
        f"{here['processor']}, {here['cores']} cores, -j{here['jobs']}, {here['compiler']}, Nix {here['nix']}, "
        f"kbuild {here['kbuild']}, {here['measured']}, load {here['load'][0]} at the start"
    )


def _build_row(entry: Any, step: str) -> str:
    ours, theirs = entry["kbuild"][step], entry["ninja"][step]
    ratio = f"{ours['cpu'] / theirs['cpu']:.2f}" if step != "again" else ""
    return (
        f"| {entry['project']} | {len(entry['variants'])} ({entry['selection']}) | {STEPS[step]} "
        f"| {ours['cpu']:.1f} | {theirs['cpu']:.1f} | {ratio} | {ours['wall']:.1f} | {theirs['wall']:.1f} "
        f"| {ours['others'] + theirs['others']:.0f} |"
    )


def _verdict(entry: Any) -> str:
    count = len(entry["variants"])
    ratio = entry["kbuild"]["build"]["cpu"] / entry["ninja"]["build"]["cpu"]
    met = "met" if ratio <= 1 / 3 else "missed"
    text = (
        f"- {entry['project']}, {count} variants: {ratio:.2f} of the processor time (aim 0.33: {met}); with nothing "
        f"changed {entry['kbuild']['again']['wall']:.1f} s (aim 3)."
    )
    if entry["ninja"]["edited"] is None:
        return text
    device = entry["ninja"]["edited"]["cpu"] / sum("-cu1" in name for name in entry["variants"])
    return (
        f"{text}\n  Of the {entry['ninja']['build']['cpu'] / count:.1f} s that a variant costs with ninja on average, "
        f"the .cu and a link are {device:.1f} s.\n  Those kbuild spends once per CUDA toolkit; the rest is the "
        "bindings, which must be compiled for every PyTorch."
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("builds", "start-up", "fetch")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(parts)}, render; default: all"
    )
    parser.add_argument("--jobs", type=int, default=host.jobs())
    arguments = parser.parse_args()
    wanted = arguments.parts or parts
    if unknown := [part for part in wanted if part not in (*parts, "render")]:
        parser.error(f"no part is called {unknown[0]}")
    result: dict[str, Any] = (
        json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {"version": 1}
    )
    with tempfile.TemporaryDirectory(prefix="kbuild-benchmark-") as folder:
        work = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        try:
            for part in wanted:
                if part == "render":
                    continue
                conditions = machine(arguments.jobs)
                match part:
                    case "builds":
                        result[part] = measure_builds(work, arguments.jobs)
                    case "start-up":
                        result[part] = {"commands": [asdict(entry) for entry in start_up(work)]}
                    case "fetch":
                        result[part] = {"steps": [asdict(entry) for entry in fetches(work)]}
                result[part] |= {"conditions": conditions}
                RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        finally:
            # A Nix store is read-only, folders included.
            subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    if absent := [part for part in parts if part not in result]:
        print(f"no report yet: {', '.join(absent)} not measured", file=sys.stderr)
        return
    text = render(result)
    RESULT.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
