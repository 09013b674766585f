"""The usual way, for comparison: each variant by itself with ninja, as `torch.utils.cpp_extension` does it.

One ninja file a variant, which compiles every source and links the objects. The compilers, their flags, the CUDA
architectures, the CUDA toolkit and the PyTorch headers are taken from the recipes that kbuild made for the same
variant, so that they are the same by construction. What cpp_extension adds is added: dependency files, and a link
with nothing but g++ and libcudart. What it does not do is not done: no sandbox, no link stubs, no strip, no
verification. PyTorch's own libraries are not linked (the header trees have none), and starting Python and importing
torch, which cpp_extension does before every build, is left out; both make this side cheaper than the real tool.
"""

import importlib.util
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.costs import Cost, measure

import kbuild
from kbuild import host, nixcmd
from kbuild.project import Project
from kbuild.workspace import workspace

ENV = {"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"}

RULES = """\
builddir = {folder}
rule compile
  command = $argv
  depfile = $out.d
  deps = gcc
rule link
  command = g++ -shared $in $libraries -o $out
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One call of a compiler; `output` is an absolute path, as the dependency file names it."""

    source: str
    argv: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one variant is built in a folder of its own; `toolkit` is the CUDA toolkit's root, if it has one.

    ninja runs among the sources, since the compilers write their dependencies relative to where they run.
    """

    variant: str
    sources: Path
    folder: Path
    units: tuple[Unit, ...]
    toolkit: str | None

    def write(self) -> None:
        """Lay out the folder with its build.ninja."""
        self.folder.mkdir(parents=True)
        text = RULES.format(folder=self.folder)
        for unit in self.units:
            text += f"build {unit.output}: compile {unit.source}\n"
            text += f"  argv = {' '.join(unit.argv).replace('$', '$$')}\n"
        text += (
            f"build {self.folder}/{self.variant}.so: link {' '.join(unit.output for unit in self.units)}\n"
        )
        text += f"  libraries = -L{self.toolkit}/lib -lcudart\n" if self.toolkit else "  libraries =\n"
        (self.folder / "build.ninja").write_text(text)

    def build(self, jobs: int) -> Cost:
        """Build what is not up to date."""
        argv = ["ninja", "-f", str(self.folder / "build.ninja"), "-j", str(jobs)]
        return measure(argv, self.folder / "log", cwd=self.sources, env=ENV).cost


def plans(project: Path, variants: Sequence[str], folder: Path) -> list[Plan]:
    """One plan a variant, with its ninja file written and its CUDA toolkit in the default store."""
    recipes = _recipes(project, variants)
    made = [_plan(name, recipes[name].drv, project, folder / name) for name in variants]
    for plan in made:
        plan.write()
    return made


def _recipes(root: Path, variants: Sequence[str]) -> Mapping[str, nixcmd.Derivation]:
    session = {"host": host.detect().as_json(), "provenance": None}
    with workspace(root, list(Project.open(root).visible_files()), session) as place:
        return nixcmd.probe().evaluate(place.project, variants, {"kbuild": place.builder})


def _plan(variant: str, drv: str, sources: Path, folder: Path) -> Plan:
    step = _compile_step()
    closure = _out("nix-store", "--query", "--requisites", drv).split()
    units, toolkit = [], None
    for path in closure:
        if path.endswith(".o.drv"):
            inputs = _inputs(path)
            # kbuild's link step provides the op namespace; here it is compiled in, as cpp_extension does.
            inputs["defines"] = [name for name in inputs["defines"] if name != "KBUILD_NAMESPACE_AT_LINK"]
            output = str(folder / f"{inputs['unit'].replace('/', '-')}.o")
            argv = step.command(inputs, output, threads="1")
            dependencies = (
                ["--generate-dependencies-with-compile", "--dependency-output"]
                if argv[0].endswith("nvcc")
                else ["-MMD", "-MF"]
            )
            argv += [*dependencies, f"{output}.d"]
            units.append(Unit(source=inputs["unit"], argv=tuple(argv), output=output))
            toolkit = inputs["toolkit"] or toolkit
    merged = [path for path in closure if "-cuda-toolkit-" in path and path.endswith(".drv")]
    if merged:
        flags = nixcmd.Settings(max_jobs=1).flags(host.detect())
        _out("nix-store", "--realise", *merged, *flags)
    return Plan(variant=variant, sources=sources, folder=folder, units=tuple(units), toolkit=toolkit)


def _inputs(drv: str) -> dict[str, Any]:
    shown = _out("nix", "--extra-experimental-features", "nix-command", "show-derivation", drv)
    inputs: dict[str, Any] = json.loads(json.loads(shown)[drv]["env"]["__json"])["inputs"]
    return inputs


def _compile_step() -> ModuleType:
    path = Path(kbuild.__file__).parent / "nix" / "steps" / "compile.py"
    spec = importlib.util.spec_from_file_location("compile_step", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _out(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
