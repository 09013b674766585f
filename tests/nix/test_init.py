"""What `kbuild init` writes builds for CPU and CUDA, verifies, and passes its own tests through `kbuild test`."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from clients import Client, kernel_tester, with_triton
from runs import Finished, kbuild

from kbuild.hub import card
from kbuild.hub.plan import RepoType
from kbuild.hub.tree import read_build
from kbuild.scaffold import Backend, Op, Scaffold, render, write

pytestmark = pytest.mark.nix

ROOT = Path(__file__).parents[2]
VARIANTS = {
    False: ("torch213-cxx11-cpu-x86_64-linux", "torch213-cxx11-cu130-x86_64-linux"),
    True: ("torch-stable-abi210-cpu-x86_64-linux", "torch-stable-abi210-cu130-x86_64-linux"),
}


NOARCH = ["torch-cuda", "torch-cpu"]
# Tests that are skipped here: those that need a GPU, and one that needs transformers.
NEED_MORE = {Op.ELEMENTWISE: 2, Op.RMSNORM: 5 + 1}


@pytest.fixture(scope="session")
def tester() -> Client:
    return kernel_tester()


def on_path(client: Client) -> Mapping[str, str]:
    """The environment of a person who has activated the client's virtual environment."""
    return {"PATH": f"{client.python.parent}{os.pathsep}{os.environ['PATH']}", "DO_NOT_TRACK": ""}


def make(
    folder: Path, *, op: Op, stable: bool, backends: tuple[Backend, ...], function: str | None = None
) -> tuple[Path, list[str]]:
    scaffold = Scaffold(
        org="acme", name=f"my-{op}", backends=backends, op=op, stable_abi=stable, function=function
    )
    write(render(scaffold), folder / scaffold.name)
    names = [name for name in VARIANTS[stable] if any(f"-{b[:2]}" in name for b in backends)]
    return folder / scaffold.name, names


def build(root: Path, names: list[str]) -> Finished:
    return kbuild("build", root, *(part for name in names for part in ("--variant", name)), "--json")


@pytest.mark.parametrize(
    ("op", "stable", "function"),
    [
        # NB: the names of functions of the C library.
        pytest.param(Op.ELEMENTWISE, False, "tanh", id="elementwise-ordinary-renamed"),
        pytest.param(Op.RMSNORM, True, "fma", id="rmsnorm-stable-renamed"),
        pytest.param(Op.ELEMENTWISE, True, None, id="elementwise-stable", marks=pytest.mark.heavy),
        pytest.param(Op.RMSNORM, False, None, id="rmsnorm-ordinary", marks=pytest.mark.heavy),
    ],
)
def test_builds_and_passes_its_own_tests(
    tmp_path: Path, tester: Client, op: Op, stable: bool, function: str | None
) -> None:
    root, names = make(
        tmp_path, op=op, stable=stable, backends=(Backend.CUDA, Backend.CPU), function=function
    )
    built = build(root, names)
    assert built.statuses() == dict.fromkeys(names, "built"), built.stderr
    before = sorted(path for path in (root / "build").rglob("*"))
    tested = kbuild("test", root, "--json", env=on_path(tester))
    assert tested.code == 0, tested.stderr
    result = tested.json()
    assert (result["variant"], result["notes"]) == (names[0], [])
    assert result["failed"] == 0
    assert result["passed"] > 30
    assert result["skipped"] == NEED_MORE[op]
    check_benchmarks_on_cpu(root, tester)
    assert sorted(path for path in (root / "build").rglob("*")) == before, "tests leave no trace in a build"
    run_the_card_s_example(root, f"acme/{root.name}", names, tester)


def make_noarch(folder: Path, op: Op) -> Path:
    """A Triton project, built for both backends."""
    root = folder / f"my-{op}"
    backends = (Backend.CUDA, Backend.CPU)
    write(
        render(Scaffold(org="acme", name=root.name, backends=backends, op=op, stable_abi=False, noarch=True)),
        root,
    )
    built = build(root, NOARCH)
    assert built.statuses() == dict.fromkeys(NOARCH, "built"), built.stderr
    return root


@pytest.mark.parametrize("op", list(Op))
def test_a_triton_project_passes_its_own_tests(tmp_path: Path, tester: Client, op: Op) -> None:
    """By the formula for the CPU: this environment has neither Triton nor a GPU."""
    root = make_noarch(tmp_path, op)
    tested = kbuild("test", root, "--json", env=on_path(tester))
    assert tested.code == 0, tested.stderr
    result = tested.json()
    assert (result["variant"], result["failed"], result["notes"]) == ("torch-cpu", 0, [])
    assert result["passed"] > 30
    assert result["skipped"] == NEED_MORE[op]
    check_benchmarks_on_cpu(root, tester)
    run_the_card_s_example(root, f"acme/{root.name}", NOARCH, tester)
    without = kbuild(
        "test", root, "-k", "any_leading or special", env={**on_path(tester), "TRITON_INTERPRET": "1"}
    )
    assert without.code == 1
    assert "No module named 'triton'" in without.stderr + without.stdout


@pytest.mark.heavy
@pytest.mark.parametrize("op", list(Op))
def test_a_triton_kernel_itself(tmp_path: Path, op: Op) -> None:
    """In Triton's interpreter, on the CPU: no GPU runs it here."""
    root = make_noarch(tmp_path, op)
    interpreted = {**on_path(with_triton()), "TRITON_INTERPRET": "1"}
    tested = kbuild("test", root, "--json", env=interpreted)
    assert tested.code == 0, tested.stderr
    assert tested.json()["passed"] > 30
    device = root / "build" / "torch-cpu" / "triton_kernel.py"
    device.chmod(0o644)
    device.write_text(re.sub(r"(tl\.exp|tl\.rsqrt)", r"1.01 * \1", device.read_text()))
    broken = kbuild("test", root, "-k", "matches_float64", "--json", env=interpreted)
    assert broken.code == 1, "it was the kernel that ran"
    assert broken.json()["passed"] < broken.json()["failed"]


@pytest.mark.heavy
@pytest.mark.parametrize("stable", [False, True], ids=["ordinary", "stable"])
@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("op", list(Op))
def test_builds_for_one_backend(tmp_path: Path, op: Op, backend: Backend, stable: bool) -> None:
    root, names = make(tmp_path, op=op, stable=stable, backends=(backend,))
    built = build(root, names)
    assert built.statuses() == dict.fromkeys(names, "built"), built.stderr


def run_the_card_s_example(root: Path, repo: str, names: list[str], tester: Client) -> None:
    """The card that publishing makes of CARD.md: front matter, no template left, and Python that runs."""
    local = read_build(root / "build", violations=dict.fromkeys(names, ()))
    text = card.render(root, local, repo_id=repo, repo_type=RepoType.KERNEL)
    assert yaml.safe_load(text.split("---\n")[1])["library_name"] == "kernels"
    assert "{%" not in text
    assert all(f"| `{name}` |" in text for name in names)
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    tester.check(code + "assert y.shape == x.shape\n", environment={"LOCAL_KERNELS": f"{repo}={root}"})


def check_benchmarks_on_cpu(root: Path, tester: Client) -> None:
    """What `kbuild bench` runs on a GPU: every way to compute it agrees with the exact one."""
    checked = kbuild("bench", root, "--check", "--json", env=on_path(tester))
    assert checked.code == 0, checked.stderr
    columns = [
        (column, result["tolerance"]) for result in checked.json()["results"] for column in result["columns"]
    ]
    assert {column["name"] for column, _ in columns} == {"eager", "torch", "ours"}
    assert all(column["error"] < tolerance and column["gpu_us"] is None for column, tolerance in columns)
    said = kbuild("bench", root, "--check", env=on_path(tester))
    assert "nothing was timed" in said.stdout
    assert (said.stdout + said.stderr).count("large for a CPU") == 1
    assert "note:" not in said.stderr
    with (root / "build.toml").open("a") as file:
        file.write("# edited\n")
    of_others = kbuild("bench", root, "--check", env=on_path(tester))
    assert of_others.code == 0
    assert "note: the sources are not those that torch" in of_others.stderr
    timed = kbuild("bench", root, env=on_path(tester))
    assert timed.code == 3
    assert "kbuild bench --check" in timed.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CPU build, to be tested in ways that fail."""
    root, names = make(
        tmp_path_factory.mktemp("failing"), op=Op.ELEMENTWISE, stable=False, backends=(Backend.CPU,)
    )
    assert build(root, names).code == 0
    return root


def copy(project: Path, target: Path) -> Path:
    return Path(shutil.copytree(project, target))


def test_a_failing_test_is_a_finding(project: Path, tmp_path: Path, tester: Client) -> None:
    root = copy(project, tmp_path / "project")
    (root / "tests" / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    tested = kbuild("test", root, "-k", "wrong", "--json", env=on_path(tester))
    assert tested.code == 1
    assert (tested.json()["passed"], tested.json()["failed"], tested.json()["ok"]) == (0, 1, False)
    assert "assert 1 == 2" in tested.stderr
    spoken = kbuild("test", root, "-k", "wrong", env=on_path(tester))
    assert "FAILED its tests" in spoken.stderr


def test_options_of_pytest_in_the_project_s_folder(project: Path, tester: Client) -> None:
    tested = kbuild("test", "-k", "declares", "-v", "--json", cwd=project, env=on_path(tester))
    assert tested.code == 0, tested.stderr
    assert tested.json()["passed"] == 1
    assert "::test_declares_what_it_does PASSED" in tested.stderr


def test_the_example_of_its_help_selects_a_dtype(project: Path, tester: Client) -> None:
    help_text = " ".join(kbuild("test", "--help").stdout.split())
    example = re.search(r"kbuild test (-k \w+)", help_text)
    assert example is not None
    tested = kbuild("test", project, *example[1].split(), "--json", env=on_path(tester))
    assert tested.code == 0, tested.stderr
    assert 10 < tested.json()["passed"] < 20


def test_selecting_nothing_is_no_failed_test(project: Path, tester: Client) -> None:
    tested = kbuild("test", project, "-k", "no_such_test", env=on_path(tester))
    assert tested.code == 2
    assert "selected none of the tests" in tested.stderr
    assert f"kbuild test {project} --collect-only -q" in tested.stderr
    assert "FAILED" not in tested.stderr


def test_the_configuration_around_a_project_is_not_its_own(
    project: Path, tmp_path: Path, tester: Client
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    assert kbuild("test", copy(project, tmp_path / "project"), "-k", "layer", env=on_path(tester)).code == 0


def test_nothing_built(project: Path, tmp_path: Path, tester: Client) -> None:
    root = copy(project, tmp_path / "project")
    shutil.rmtree(root / "build")
    tested = kbuild("test", root, env=on_path(tester))
    assert tested.code == 2
    assert "nothing is built" in tested.stderr
    assert "kbuild build" in tested.stderr


def test_nothing_that_fits(project: Path, tmp_path: Path, tester: Client) -> None:
    root = copy(project, tmp_path / "project")
    (root / "build" / VARIANTS[False][0]).rename(root / "build" / VARIANTS[False][0].replace("213", "209"))
    tested = kbuild("test", root, env=on_path(tester))
    assert tested.code == 3
    assert "no built variant fits this machine's PyTorch 2.13 with no CUDA" in tested.stderr


def test_a_variant_of_another_pytorch(project: Path, tmp_path: Path, tester: Client) -> None:
    root = copy(project, tmp_path / "project")
    (root / "build" / VARIANTS[False][0]).rename(root / "build" / VARIANTS[False][1])
    tested = kbuild("test", root, "--variant", VARIANTS[False][1], env=on_path(tester))
    assert tested.code == 3
    assert f"{VARIANTS[False][1]} does not load in this machine's PyTorch 2.13 with no CUDA" in tested.stderr
    assert "Traceback" not in tested.stdout + tested.stderr


def test_a_variant_that_is_not_there(project: Path, tester: Client) -> None:
    tested = kbuild("test", project, "--variant", "torch-cuda", env=on_path(tester))
    assert tested.code == 2
    assert VARIANTS[False][0] in tested.stderr


def test_a_build_that_cannot_be_loaded(project: Path, tmp_path: Path, tester: Client) -> None:
    root = copy(project, tmp_path / "project")
    package = root / "build" / VARIANTS[False][0] / "__init__.py"
    package.chmod(0o644)
    package.write_text("import no_such_module\n")
    tested = kbuild("test", root, env=on_path(tester))
    assert tested.code == 1
    assert "the built kernel cannot be loaded: ModuleNotFoundError" in tested.stderr


def test_an_environment_without_pytorch(project: Path) -> None:
    tested = kbuild("test", project, env={"PATH": "/usr/bin:/bin"})
    assert tested.code == 3
    assert "pip install torch" in tested.stderr


def test_an_environment_without_pytest(project: Path, new: Client) -> None:
    tested = kbuild("test", project, env=on_path(new))
    assert tested.code == 3
    assert "no pytest" in tested.stderr
