"""What `kbuild test` says of the tests of a Python kernel, in an environment with a CPU PyTorch."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from clients import Client, kernel_tester
from runs import Finished, kbuild
from trees import write_variant

from kbuild import freshness
from kbuild.project import Project

CONFIG = """\
[general]
name = "double-it"
version = 1
edition = 5
license = "MIT"
backends = ["cuda", "cpu"]

[torch-noarch]
"""
KERNEL = "def double(x):\n    return x + x\n\n\n__all__ = ['double']\n"
TESTS = """\
import pytest
import torch
from kernels import get_kernel

kernel = get_kernel("acme/double-it", version=1, trust_remote_code=True)


def test_double():
    assert kernel.double(torch.tensor(2)) == 4


def test_zero():
    assert kernel.double(torch.tensor(0)) == 0


@pytest.mark.skip
def test_later():
    pass
"""


@pytest.fixture(scope="module")
def environment() -> Mapping[str, str]:
    """That of a person who has activated a virtual environment with what `kbuild test` needs."""
    tester: Client = kernel_tester()
    return {
        "PATH": f"{tester.python.parent}{os.pathsep}{os.environ['PATH']}",
        "DO_NOT_TRACK": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Built for both backends, with two tests that pass and one that is skipped."""
    root = tmp_path / "double-it"
    write(root / "build.toml", CONFIG)
    write(root / "torch-ext" / "double_it" / "__init__.py", KERNEL)
    write(root / "tests" / "test_double.py", TESTS)
    digests = freshness.digests(Project.open(root))
    for backend, archs in (("cpu", None), ("cuda", ("9.0",))):
        variant = f"torch-{backend}"
        write_variant(
            root / "build",
            variant,
            {"__init__.py": KERNEL.encode()},
            kernel="double-it",
            archs=archs,
            identity=f"_double_it_{digests[variant]}_torch_{backend}",
        )
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_passed(project: Path, environment: Mapping[str, str]) -> None:
    spoken = kbuild("test", project, env=environment)
    assert spoken.code == 0, spoken.stderr
    assert spoken.stderr == "double-it: torch-cpu passed its tests\n"
    told = kbuild("test", project, "--json", env=environment).json()
    assert (told["variant"], told["ok"], told["notes"]) == ("torch-cpu", True, [])
    assert (told["passed"], told["failed"], told["skipped"]) == (2, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "adding", "words"),
    [
        (["--collect-only"], "", "no test ran"),
        (["--fixtures"], "", "no test ran"),
        (["--version"], "", "no test ran"),
        ([], "--collect-only", "no test ran"),
        (["-k", "later"], "", "1 test skipped"),
    ],
)
def test_nothing_passed_where_no_test_ran(
    project: Path, environment: Mapping[str, str], arguments: list[str], adding: str, words: str
) -> None:
    env = {**environment, "PYTEST_ADDOPTS": adding}
    spoken = kbuild("test", project, *arguments, env=env)
    assert spoken.code == 0
    assert f"was not tested: {words}" in spoken.stderr
    assert "passed its tests" not in spoken.stderr
    assert kbuild("test", project, *arguments, "--json", env=env).json()["ok"] is None


def test_a_run_that_a_test_ends_has_not_passed(project: Path, environment: Mapping[str, str]) -> None:
    ends = "import pytest\n\n\ndef test_end():\n    pytest.exit('done', returncode=0)\n"
    write(project / "tests" / "test_ending.py", ends)
    spoken = kbuild("test", project, env=environment)
    assert spoken.code == 1
    assert "FAILED" in spoken.stderr


@pytest.mark.parametrize("selection", ["tests/test_double.py", "tests/test_double.py::test_zero", "tests"])
def test_a_path_is_all_that_runs(project: Path, environment: Mapping[str, str], selection: str) -> None:
    write(project / "tests" / "deeper" / "test_other.py", "def test_other():\n    pass\n")
    told = kbuild("test", project, selection, "--json", env=environment).json()
    assert told["passed"] == {"tests/test_double.py": 2, "tests": 3}.get(selection, 1)
    assert kbuild("test", project, "-q", "--json", env=environment).json()["passed"] == 3


def test_options_of_the_project_s_own_conftest(project: Path, environment: Mapping[str, str]) -> None:
    option = "def pytest_addoption(parser):\n    parser.addoption('--sizes')\n"
    write(project / "tests" / "conftest.py", option)
    told = kbuild("test", project, "--sizes", "large", "--json", env=environment)
    assert told.json()["passed"] == 2, told.stderr


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["-q", "tests/no_such.py"], {}),
        (["--no-such-option"], {}),
        ([], {"tests/conftest.py": "import no_such_module\n"}),
        ([], {"pyproject.toml": "[tool.pytest\n"}),
    ],
)
def test_what_pytest_does_not_take_is_a_usage_error(
    project: Path, environment: Mapping[str, str], arguments: list[str], files: dict[str, str]
) -> None:
    for name, text in files.items():
        write(project / name, text)
    spoken = kbuild("test", project, *arguments, env=environment)
    assert spoken.code == 2, spoken.stderr
    assert "error: pytest did not run the tests" in spoken.stderr
    assert str(project) in spoken.stderr
    assert "FAILED" not in spoken.stderr


def notes(finished: Finished) -> list[str]:
    return re.findall(r"^note: (.*)$", finished.stderr, re.MULTILINE)


def test_what_a_cuda_variant_runs_without_a_gpu_is_not_its_kernel(
    project: Path, environment: Mapping[str, str]
) -> None:
    spoken = kbuild("test", project, "--variant", "torch-cuda", env=environment)
    assert spoken.code == 0
    assert "torch-cuda passed its tests" in spoken.stderr
    assert notes(spoken) == ["there is no GPU here: of torch-cuda only what runs on a CPU was tested"]
    interpreted = {**environment, "TRITON_INTERPRET": "1"}
    assert notes(kbuild("test", project, "--variant", "torch-cuda", env=interpreted)) == []


def test_a_build_of_other_sources_is_said_to_be_that(project: Path, environment: Mapping[str, str]) -> None:
    write(project / "torch-ext" / "double_it" / "__init__.py", KERNEL + "# edited\n")
    spoken = kbuild("test", project, env=environment)
    assert spoken.code == 0
    assert notes(spoken) == ["the sources are not those that torch-cpu was built from: run `kbuild build`"]
    assert kbuild("test", project, "--json", env=environment).json()["notes"] == notes(spoken)


def test_an_import_of_what_is_only_built(project: Path, environment: Mapping[str, str]) -> None:
    write(project / "tests" / "test_import.py", "import double_it\n")
    spoken = kbuild("test", project, env=environment)
    assert spoken.code == 1
    (note,) = notes(spoken)
    assert "double_it is built, not installed" in note
    assert 'get_kernel("acme/double-it"' in note


def test_a_repository_by_the_name_of_a_variable(project: Path, environment: Mapping[str, str]) -> None:
    by_name = 'REPO = "acme/double-it"\nkernel = get_kernel(REPO'
    write(
        project / "tests" / "test_double.py", TESTS.replace('kernel = get_kernel("acme/double-it"', by_name)
    )
    told = kbuild("test", project, "--json", env=environment)
    assert told.json()["variant"] == "torch-cpu", told.stderr


def test_a_repository_that_nobody_names(project: Path, environment: Mapping[str, str]) -> None:
    path = project / "tests" / "test_double.py"
    path.write_text(path.read_text().replace('"acme/double-it"', '"/".join(["acme", "double-it"])'))
    spoken = kbuild("test", project, env=environment)
    assert spoken.code == 1
    assert "--repo-id ORG/double-it" in notes(spoken)[0]
    assert kbuild("test", project, "--repo-id", "acme/double-it", env=environment).code == 0


@pytest.mark.parametrize("name", ["bad", "a/b/c", "a/", "a/b=c", ""])
def test_a_repository_id_that_is_none(project: Path, name: str) -> None:
    spoken = kbuild("test", project, "--repo-id", name)
    assert spoken.code == 2
    assert f"{name!r} names no repository" in spoken.stderr
