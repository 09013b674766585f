"""What kbuild's way of building a matrix of variants costs, beside the usual way, and what the first steps cost.

    python tests/benchmarks/build_matrix.py          measure, write build_matrix.json and build_matrix.md
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

from benchmarks import heavy_kernel, plain_ninja
from benchmarks.costs import Cost, load, measure

HERE = Path(__file__).parent
RESULT = HERE / "build_matrix.json"
RELU = HERE.parents[1] / "example_kernels" / "relu"
# Any change of a translation unit that changes its object as well.
EDIT = "\nint kbuild_benchmark_edit() { return 1; }\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to build the same variants: from nothing, again with nothing changed, after one .cu was edited."""

    build: Cost
    again: Cost
    edited: Cost


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
    """What the fetcher received for some trees; `interfaces` is all that this machine received meanwhile."""

    what: str
    trees: int
    received: int
    interfaces: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Wall seconds of a whole process, sorted."""

    command: str
    seconds: list[float]


def measure_all(work: Path, jobs: int) -> dict[str, object]:
    """Everything, in one run."""
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    base = base_store(work)
    result: dict[str, object] = {
        "version": 1,
        "measured": started,
        "machine": machine(jobs),
        "witness": asdict(witness(work, base)),
    }
    comparisons: list[dict[str, Any]] = []
    for copy, selection in ((copy_relu, "cu130"), (copy_relu, "all"), (heavy_kernel.write, "cu130")):
        folder = work / f"{len(comparisons)}"
        folder.mkdir()
        project = folder / "project"
        copy(project)
        comparisons.append(asdict(compare(project, selection, base, folder, jobs)))
        print(comparisons[-1], file=sys.stderr)
    result["comparisons"] = comparisons
    result["start_up"] = [asdict(entry) for entry in start_up(work)]
    result["fetch"] = [asdict(entry) for entry in fetches(work)]
    return result


def machine(jobs: int) -> dict[str, object]:
    """What the numbers were measured on."""
    model = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "kernel": platform.release(),
        "compiler": host.detect().compiler,
        "nix": ".".join(map(str, nixcmd.probe().version)),
        "kbuild": f"{__version__} ({commit.stdout.strip()})",
    }


def copy_relu(project: Path) -> None:
    """The example without what earlier builds left in it, and without a flake, so that it stands by itself."""
    shutil.copytree(RELU, project, ignore=shutil.ignore_patterns("build", "flake.nix", "__pycache__"))


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


def compare(project: Path, selection: str, base: Path, folder: Path, jobs: int) -> Comparison:
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
    (source,) = project.rglob("*.cu")
    original = source.read_text(encoding="utf-8")
    sides = []
    for way in (kbuild, ninja):
        build, again = way(), way()
        source.write_text(original + EDIT, encoding="utf-8")
        sides.append(Side(build=build, again=again, edited=way()))
        source.write_text(original, encoding="utf-8")
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
    for words in (["--help"], ["check", str(RELU)]):
        costs = [measure([program, *words], work / "start.log").cost.wall for _ in range(runs + 1)]
        shown = " ".join(["kbuild", *words]).replace(str(RELU), "example_kernels/relu")
        # The first one fills the disk cache.
        yield StartUp(command=shown, seconds=sorted(costs[1:]))


def fetches(work: Path) -> Iterable[Fetch]:
    """What a machine with an empty store and cache receives: the first CUDA variant, then each further PyTorch."""
    store = Store(options=("--store", str(work / "empty-store")))
    matrix = data_json("matrix.json")
    first = "2.13"
    steps = [(f"PyTorch {first} and CUDA 13.0", [f"torch-{first}", *matrix["toolkits"]["cu130"]["trees"]])]
    steps += [
        (f"PyTorch {torch}", [entry["tree"]]) for torch, entry in matrix["torch"].items() if torch != first
    ]
    steps += [("CUDA 13.2", matrix["toolkits"]["cu132"]["trees"])]
    for what, keys in steps:
        before = _received()
        fetched = ensure(keys, nix=store, cache=work / "empty-cache")
        yield Fetch(
            what=what,
            trees=len(keys),
            received=fetched.bytes_received,
            interfaces=_received() - before,
            seconds=fetched.seconds,
        )


def _received() -> int:
    """Bytes that the network interfaces other than loopback have received (proc_net_dev(5))."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    counters = (line.split(":", 1) for line in lines)
    return sum(int(values.split()[0]) for name, values in counters if name.strip() != "lo")


def render(result: Any) -> str:
    """The report, from the JSON alone."""
    here = result["machine"]
    return REPORT.format(
        machine=f"{here['processor']}, {here['cores']} cores, -j{here['jobs']}, {here['compiler']}, "
        f"Nix {here['nix']}, kbuild {here['kbuild']}",
        measured=result["measured"],
        witness=result["witness"],
        disagreement=max(abs(cost["cpu"] / cost["cgroup"] - 1) for cost in _costs(result) if cost["cgroup"]),
        builds="\n".join(_build_row(entry, step) for entry in result["comparisons"] for step in STEPS),
        loads="; ".join(
            f"{entry['project']} {entry['selection']} {entry['load'][0][0]} and {entry['load'][1][0]}"
            for entry in result["comparisons"]
        ),
        verdicts="\n".join(_verdict(entry) for entry in result["comparisons"]),
        fetches="\n".join(
            f"| {entry['what']} | {entry['trees']} | {entry['received'] / 1e6:.1f} "
            f"| {entry['interfaces'] / 1e6:.1f} | {entry['seconds']:.0f} |"
            for entry in result["fetch"]
        ),
        starts="\n".join(
            f"| `{entry['command']}` | {statistics.median(entry['seconds']):.3f} | {entry['seconds'][0]:.3f} "
            f"| {entry['seconds'][-1]:.3f} | {len(entry['seconds'])} |"
            for entry in result["start_up"]
        ),
    )


STEPS = {"build": "from nothing", "again": "nothing changed", "edited": "one .cu edited"}

REPORT = """\
# Building a matrix of variants: kbuild beside one ninja a variant

{machine}; {measured}; one run.

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

## Bytes that a machine with nothing receives

Counted by the fetcher; beside it everything that the network interfaces received meanwhile (pip's look-ups, and other
programs of the machine).

| what | trees | MB fetched | MB at the interfaces | s |
| --- | ---: | ---: | ---: | ---: |
{fetches}

Aims: at most 250 MB for the first CUDA variant, at most 40 MB for each further PyTorch.

## Start-up, whole processes

| command | median s | least | most | runs |
| --- | ---: | ---: | ---: | ---: |
{starts}

Aims: 0.15 s for `--help`, 0.3 s for `check`.

Written by `tests/benchmarks/build_matrix.py`.
"""


def _costs(result: Any) -> Iterable[Any]:
    for entry in result["comparisons"]:
        for side in ("kbuild", "ninja"):
            # The kernel's clock ticks show in what takes less than a second.
            yield from (cost for cost in entry[side].values() if cost["cpu"] > 1)


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
    device = entry["ninja"]["edited"]["cpu"] / sum("-cu1" in name for name in entry["variants"])
    whole = entry["ninja"]["build"]["cpu"] / count
    met = "met" if ratio <= 1 / 3 else "missed"
    return (
        f"{entry['project']}, {count} variants: {ratio:.2f} of the processor time (aim 0.33: {met}). Of the "
        f"{whole:.1f} s that a variant costs with ninja, the .cu and its link are {device:.1f} s; kbuild spends "
        f"those once per CUDA toolkit, and the bindings' share once per PyTorch as any tool must. With nothing "
        f"changed it takes {entry['kbuild']['again']['wall']:.1f} s (aim 3)."
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("measure", "render"), default="measure")
    parser.add_argument("--jobs", type=int, default=host.jobs())
    arguments = parser.parse_args()
    if arguments.what == "measure":
        with tempfile.TemporaryDirectory(prefix="kbuild-benchmark-") as folder:
            try:
                result = measure_all(Path(folder), arguments.jobs)
            finally:
                # A Nix store is read-only, folders included.
                subprocess.run(["chmod", "-R", "u+w", folder], check=True)
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    text = render(json.loads(RESULT.read_text(encoding="utf-8")))
    RESULT.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
