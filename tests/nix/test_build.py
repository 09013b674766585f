"""The main job on real input: `kbuild build` with real Nix, the pinned wheels and nvcc."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kernel_abi_check
import pytest
from runs import Finished, kbuild

from kbuild import host, nixcmd
from kbuild.abi.verify import verify_variant
from kbuild.project import Project
from kbuild.variants import Matrix, chosen, select
from kbuild.workspace import workspace

pytestmark = pytest.mark.nix

ROOT = Path(__file__).parents[2]
RELU = ROOT / "example_kernels" / "relu"
CPU = "torch213-cxx11-cpu-x86_64-linux"
CUDA = "torch213-cxx11-cu130-x86_64-linux"


def copy_project(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("build", "__pycache__"))
    return target


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def recipes(project_root: Path) -> tuple[nixcmd.Nix, dict[str, nixcmd.Derivation]]:
    """Every variant's derivation, evaluated and not built."""
    project = Project.open(project_root)
    wanted = [v.name for v in chosen(select(project.require_config(), Matrix.load()))]
    nix = nixcmd.probe()
    session = {"host": host.detect().as_json(), "provenance": None}
    with workspace(project.root, list(project.visible_files()), session) as place:
        return nix, nix.evaluate(place.project, wanted, {"kbuild": place.builder})


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """The example, built for one CPU and one CUDA variant in a folder with a space, outside git."""
    root = copy_project(RELU, tmp_path_factory.mktemp("a project") / "relu")
    return root, kbuild("build", root, "--variant", CPU, "--variant", CUDA, "--json")


def test_builds_and_verifies(relu: tuple[Path, Finished]) -> None:
    root, built = relu
    assert built.code == 0, built.stderr
    assert set(built.statuses().values()) == {"built"}
    assert names(root / "build") == sorted([CPU, CUDA])
    for name in (CPU, CUDA):
        verdict = verify_variant(root / "build" / name)
        assert verdict.ok, verdict.violations


def test_a_second_run_changes_nothing(relu: tuple[Path, Finished]) -> None:
    root, _ = relu
    before = {p: p.stat().st_mtime_ns for p in (root / "build").rglob("*")}
    again = kbuild("build", root, "--variant", CPU, "--variant", CUDA, "--json")
    assert again.code == 0
    assert set(again.statuses().values()) == {"unchanged"}
    assert {p: p.stat().st_mtime_ns for p in (root / "build").rglob("*")} == before


def test_kernel_abi_check_agrees(relu: tuple[Path, Finished]) -> None:
    root, _ = relu
    for library in (root / "build").rglob("*.so"):
        judged = kernel_abi_check.ObjectFile(library)
        assert not judged.check_manylinux("manylinux_2_28")
        assert not judged.check_python_abi("3.9")


def test_device_code_is_compiled_once_per_toolkit() -> None:
    nix, variants = recipes(RELU)
    closures = nix.closures([v.drv for v in variants.values()])
    units = {drv for closure in closures.values() for drv in closure}
    toolkits = {
        str(v.cuda) for v in chosen(select(Project.open(RELU).require_config(), Matrix.load())) if v.cuda
    }
    assert len([drv for drv in units if drv.endswith("-relu_cuda-relu.cu.o.drv")]) == len(toolkits) > 1
    assert len([drv for drv in units if drv.endswith("-relu_cpu-relu.cpp.o.drv")]) == 1
    assert len([drv for drv in units if drv.endswith("-torch_binding.cpp.o.drv")]) == len(variants)


def test_an_edit_of_a_kernel_recompiles_no_binding(tmp_path: Path) -> None:
    edited = copy_project(RELU, tmp_path / "relu")
    source = edited / "relu_cuda" / "relu.cu"
    source.write_text(source.read_text() + "\n// edited\n")
    nix, before = recipes(RELU)
    _, after = recipes(edited)

    def bindings(variants: dict[str, nixcmd.Derivation]) -> set[str]:
        closures = nix.closures([v.drv for v in variants.values()])
        return {drv for c in closures.values() for drv in c if drv.endswith("-torch_binding.cpp.o.drv")}

    assert bindings(before) == bindings(after)
    assert before[CUDA] != after[CUDA]


def test_two_builds_are_identical(relu: tuple[Path, Finished], tmp_path: Path) -> None:
    """The same recipe from another folder, and every step of it run again gives the same bytes."""
    root, _ = relu
    elsewhere = copy_project(RELU, tmp_path / "elsewhere")
    nix, here = recipes(root)
    _, there = recipes(elsewhere)
    assert here == there
    settings = nixcmd.Settings(options=(("substitute", "false"),))
    own = [
        drv
        for drv in nix.closures([here[CUDA].drv])[here[CUDA].drv]
        if "relu" in nixcmd.step_name(drv) or "binding" in nixcmd.step_name(drv)
    ]
    nix.build([here[CUDA].drv], host.detect(), settings, nixcmd.Events())
    argv = ["nix-store", "--realise", "--check", *own, *settings.flags(host.detect())]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_compile_error_costs_only_its_variant(tmp_path: Path) -> None:
    root = copy_project(RELU, tmp_path / "relu")
    kernel = root / "relu_cpu" / "relu.cpp"
    kernel.write_text(kernel.read_text() + "\nint broken = undeclared_name;\n")
    old = root / "build" / CPU
    old.mkdir(parents=True)
    (old / "mark").write_text("the previous result")
    built = kbuild("build", root, "--variant", CPU, "--variant", CUDA, "--json")
    assert built.code == 4
    assert built.statuses() == {CPU: "failed", CUDA: "built"}
    assert "undeclared_name" in built.stderr
    failed = next(entry for entry in built.json()["variants"] if entry["variant"] == CPU)
    assert "undeclared_name" in Path(failed["log"]).read_text()
    assert (old / "mark").read_text() == "the previous result"
    assert names(root / "build") == sorted([CPU, CUDA])


def test_dry_run_builds_nothing(tmp_path: Path) -> None:
    root = copy_project(RELU, tmp_path / "relu")
    kernel = root / "relu_cpu" / "relu.cpp"
    kernel.write_text(f"// {time.time_ns()}\n" + kernel.read_text())
    planned = kbuild("build", root, "--variant", CPU, "--dry-run")
    assert planned.code == 0
    assert "relu_cpu-relu.cpp.o" in planned.stdout
    assert not (root / "build").exists()


@pytest.mark.parametrize("delay", [0.05, 0.4, 0.8, 1.5, 2.5])
def test_killed_in_the_middle(tmp_path: Path, delay: float) -> None:
    root = copy_project(RELU, tmp_path / "relu")
    kernel = root / "relu_cpu" / "relu.cpp"
    kernel.write_text(f"// {time.time_ns()}\n" + kernel.read_text())
    argv = [sys.executable, "-m", "kbuild", "build", str(root), "--variant", CPU]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (root / "build" / CPU).exists():
        assert verify_variant(root / "build" / CPU).ok
    again = kbuild("build", root, "--variant", CPU)
    assert again.code == 0, again.stderr
    assert verify_variant(root / "build" / CPU).ok
    assert names(root / "build") == [CPU]


def test_projects_with_their_own_flake_and_without_one(tmp_path: Path) -> None:
    with_flake = copy_project(RELU, tmp_path / "with")
    flake = (with_flake / "flake.nix").read_text()
    (with_flake / "flake.nix").write_text(
        flake.replace("path:../..", "github:huggingface/kernels").replace("kbuild", "kernel-builder")
    )
    without = copy_project(RELU, tmp_path / "without")
    (without / "flake.nix").unlink()
    for root in (with_flake, without):
        built = kbuild("build", root, "--variant", CPU)
        assert built.code == 0, built.stderr
    assert (with_flake / "build" / CPU / "_ops.py").read_bytes() == (
        without / "build" / CPU / "_ops.py"
    ).read_bytes()


@pytest.mark.parametrize("name", ["relu_stable", "scale_noarch"])
def test_other_kinds_of_build(tmp_path: Path, name: str) -> None:
    root = copy_project(ROOT / "tests" / "fixtures" / "projects" / name, tmp_path / name)
    variants = {"relu_stable": "torch-stable-abi210-cpu-x86_64-linux", "scale_noarch": "torch-cpu"}
    built = kbuild("build", root, "--variant", variants[name])
    assert built.code == 0, built.stderr
    assert verify_variant(root / "build" / variants[name]).ok


@pytest.mark.heavy
def test_the_whole_matrix_from_an_empty_store(tmp_path: Path) -> None:
    """Every row, its trees fetched anew; two stores and two folders give the same bytes."""
    selection = chosen(select(Project.open(RELU).require_config(), Matrix.load()))
    roots = [copy_project(RELU, tmp_path / name / "relu") for name in ("one", "another place")]
    for root, store in zip(roots, ("store-1", "store-2"), strict=True):
        built = kbuild("build", root, "--all-variants", "--json", "--store", tmp_path / store)
        assert built.code == 0, built.stderr
        assert built.stderr.count("relu_cuda-relu.cu.o") == len({v.cuda for v in selection if v.cuda})
    files = {
        path.relative_to(roots[0]): path.read_bytes()
        for path in (roots[0] / "build").rglob("*")
        if path.is_file()
    }
    assert len([path for path in files if path.suffix == ".so"]) == len(selection)
    for path, content in files.items():
        assert (roots[1] / path).read_bytes() == content, path
        if path.suffix == ".so":
            judged = kernel_abi_check.ObjectFile(roots[0] / path)
            assert not judged.check_manylinux("manylinux_2_28")
            assert not judged.check_python_abi("3.9")
