"""Python and Nix select the same variants with the same capabilities, for every kind of project."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from trees import write_variant

from kbuild import freshness, nixcmd, process
from kbuild.project import Project
from kbuild.resources import package_path
from kbuild.variants import Matrix, chosen, select

pytestmark = pytest.mark.nix

_EVAL = ["nix", "--extra-experimental-features", "nix-command flakes", "eval", "--impure", "--json"]

GENERAL = {
    "cpu": 'backends = ["cpu"]',
    "cuda": 'backends = ["cuda"]',
    "both": 'backends = ["cpu", "cuda"]',
    "cuda-bounds": 'backends = ["cpu", "cuda"]\n[general.cuda]\nminver = "13.1"',
    "cuda-maxver": 'backends = ["cuda"]\n[general.cuda]\nmaxver = "13.0"',
    "cuda-major-alone": 'backends = ["cuda"]\n[general.cuda]\nminver = "13"\nmaxver = "13"',
    "cuda-patch": 'backends = ["cuda"]\n[general.cuda]\nminver = "13.0.2"\nmaxver = "13.0.0"',
}
TORCH = {
    "plain": "",
    "minver": 'minver = "2.11"',
    "between": 'minver = "2.10"\nmaxver = "2.12"',
    "stable": 'stable-abi = "2.10"',
    "patch": 'minver = "2.13.0"\nmaxver = "2.13.1"',
    "major-alone": 'minver = "2"\nmaxver = "3"',
    "stable-patch": 'stable-abi = "2.10.0"\nminver = "2.11.1"',
    "stable-cuda-only": 'stable-abi = { cuda = "2.11" }',
}
KERNEL = {
    "default": "",
    "declared": 'cuda-capabilities = ["8.0", "9.0a", "12.0+PTX"]',
    "some-toolkits": 'cuda-capabilities = ["7.0", "10.3"]',
    "unknown-to-all-built": 'cuda-capabilities = ["7.0"]',
    "minver": 'cuda-minver = "13.2"',
    "minver-patch": 'cuda-minver = "13.2.1"',
    "major-alone": 'cuda-minver = "13"',
    "no-source-for-cutlass": 'depends = ["torch", "cutlass_4_0"]',
    "no-source-in-some-toolkits": 'cuda-minver = "13.2"\ndepends = ["cutlass_4_0"]',
}


def project(folder: Path, general: str, torch: str, kernel: str) -> Path:
    backends, _, rest = GENERAL[general].partition("\n")
    (folder / "torch-ext" / "k").mkdir(parents=True)
    (folder / "torch-ext" / "k" / "__init__.py").touch()
    for name in ("torch-ext/b.cpp", "a.cpp", "a.cu"):
        (folder / name).touch()
    sections = ""
    if "cpu" in backends:
        sections += '[kernel.a]\nbackend = "cpu"\ndepends = []\nsrc = ["a.cpp"]\n'
    if "cuda" in backends:
        depends = "" if "depends" in KERNEL[kernel] else "depends = []\n"
        sections += f'[kernel.b]\nbackend = "cuda"\n{depends}src = ["a.cu"]\n{KERNEL[kernel]}\n'
        if kernel == "no-source-in-some-toolkits":
            sections += '[kernel.c]\nbackend = "cuda"\ndepends = []\nsrc = ["a.cu"]\n'
    (folder / "build.toml").write_text(
        f'[general]\nname = "kk"\nversion = 1\nedition = 5\nlicense = "MIT"\n{backends}\n{rest}\n'
        f'[torch]\nsrc = ["torch-ext/b.cpp"]\n{TORCH[torch]}\n{sections}'
    )
    return folder


def evaluate(body: str, scope: str = "") -> Any:
    """An expression over rows.nix and its like, which get `scope` beside what they all take; from JSON."""
    package = package_path()
    expression = f"""
      let
        data = {package}/data;
        load = name: builtins.fromJSON (builtins.readFile (data + "/${{name}}"));
        scope = {{
          util = import {package}/nix/util.nix;
          matrix = load "matrix.json";
          archs = load "cuda_archs.json";
          {scope}
        }};
        project = import {package}/nix/project.nix scope;
        rows = import {package}/nix/rows.nix scope;
        variant = import {package}/nix/variant.nix scope;
        named = value: made: builtins.listToAttrs (map (row: {{ name = row.variant; value = value row; }}) made);
      in {body}
    """
    done = process.run([*_EVAL, "--expr", expression])
    assert done.ok, done.transcript()
    return json.loads(done.stdout)


def by_nix(folders: list[Path]) -> list[dict[str, dict[str, list[str]]]]:
    """What rows.nix says of each project: variant -> section -> capabilities."""
    listed = " ".join(str(folder) for folder in folders)
    result: list[dict[str, dict[str, list[str]]]] = evaluate(
        f"map (path: named (row: row.capabilities) (rows (project path))) [ {listed} ]"
    )
    return result


def test_python_and_nix_agree(tmp_path: Path) -> None:
    cases = list(itertools.product(GENERAL, TORCH, KERNEL))
    folders = [project(tmp_path / "-".join(case), *case) for case in cases]
    fixtures = [
        Path(__file__).parents[1] / "fixtures" / "projects" / n for n in ("relu_stable", "scale_noarch")
    ]
    folders += [*fixtures, Path(__file__).parents[2] / "example_kernels" / "relu"]
    compared = 0
    for folder, nix in zip(folders, by_nix(folders), strict=True):
        selection = select(Project.open(folder).require_config(), Matrix.load())
        python = {
            v.name: {k.id: sorted(map(str, k.capabilities)) for k in v.kernels if k.capabilities}
            for v in chosen(selection)
        }
        compared += len(python)
        assert {name: {k: sorted(c) for k, c in row.items()} for name, row in nix.items()} == python, (
            folder.name
        )
    assert compared > 300


def ids_by_nix(root: Path) -> dict[str, str]:
    """What variant.nix writes into metadata.json: variant -> id."""
    scope = f"""
      package = {package_path()};
      host = null;
      provenance = null;
      compile = _: "";
      link = _: "";
      step = wanted: wanted.inputs.metadata.id;
    """
    result: dict[str, str] = evaluate(f"let p = project {root}; in named (variant p) (rows p)", scope)
    return result


@pytest.mark.parametrize(
    ("root", "edited"),
    [
        ("tests/fixtures/projects/relu_stable", "build.toml"),
        ("tests/fixtures/projects/scale_noarch", "torch-ext/scale_noarch/__init__.py"),
        ("example_kernels/relu", "torch-ext/torch_binding.cpp"),
        ("example_kernels/ltx_video", "torch-ext/ltx_video/__init__.py"),
        ("example_kernels/qwen3_8b", "torch-ext/qwen3_8b/__init__.py"),
    ],
)
def test_a_build_is_known_by_the_sources_of_its_id(tmp_path: Path, root: str, edited: str) -> None:
    source = Path(__file__).parents[2] / root
    copy = tmp_path / "project"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "__pycache__"))
    ids = ids_by_nix(copy)
    assert ids
    for name, identity in ids.items():
        write_variant(copy / "build", name, {"__init__.py": b""}, identity=identity)
    assert freshness.stale(Project.open(copy)) == ()
    (copy / "tests").mkdir(exist_ok=True)
    (copy / "tests" / "test_another.py").write_text("# No variant is made of this.\n")
    assert freshness.stale(Project.open(copy)) == ()
    with (copy / edited).open("a") as file:
        file.write("\n")
    assert set(freshness.stale(Project.open(copy))) == set(ids)


def test_every_function_of_the_nix_library_is_in_its_table_of_contents() -> None:
    nix = package_path() / "nix"
    table = (nix / "default.nix").read_text()
    files = {path.name for path in nix.glob("*.nix")} - {"default.nix"}
    assert {name for name in files if f"./{name}" not in table} == set()
    assert nixcmd.SYSTEM in table
