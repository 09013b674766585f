"""The verdict over a variant's folder, and the command that prints it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import abi_samples
import pytest
from abi_samples import SAMPLES, STEM

from kbuild import metadata
from kbuild.abi.layout import TREE_RULES
from kbuild.abi.verify import verify_variant
from kbuild.variants import parse

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the path")

CPU = "torch213-cxx11-cpu-x86_64-linux"
ID = f"{STEM}_torch213_cxx11_cpu_x86_64_linux"
OPS = "import torch\n{}\nops = torch.ops.{}\n"

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return abi_samples.build(SAMPLES[0], tmp_path_factory.mktemp("library") / "good")


@pytest.fixture
def variant(tmp_path: Path, library: Path) -> Path:
    """A variant as it is built."""
    folder = tmp_path / "build" / CPU
    folder.mkdir(parents=True)
    shutil.copy(library, folder)
    (folder / "__init__.py").write_text("from ._ops import ops\n")
    (folder / "_ops.py").write_text(OPS.format(f"from . import {STEM}", STEM))
    seal(folder)
    return folder


def seal(
    folder: Path, backend: str = "cpu", archs: tuple[str, ...] | None = None, *, identity: str = ID
) -> None:
    """Write metadata.json over what lies in the folder."""
    metadata.Metadata(
        id=identity,
        name="relu",
        version=1,
        license="Apache-2.0",
        backend=metadata.BackendInfo(type=metadata.BackendType(backend), archs=archs),
        digest=metadata.digest_of(folder),
    ).write(folder / metadata.FILE_NAME)


def broken(folder: Path) -> list[tuple[str, str, str]]:
    return [(v.code, v.path, v.message) for v in verify_variant(folder).violations]


def write(name: str, text: str = "", *, again: bool = True) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        if again:
            seal(folder)

    return change


def test_a_variant_as_it_is_built_is_fine(variant: Path) -> None:
    assert broken(variant) == []
    assert verify_variant(variant).files == (abi_samples.NAME,)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (write("notes.o"), ("stray", "notes.o", "does not belong into a variant")),
        (write(".cache/x.py"), ("stray", ".cache/x.py", "does not belong into a variant")),
        (write("__pycache__/a.cpython-311.pyc"), ("stray", "__pycache__/a.cpython-311.pyc", "is bytecode")),
        (write("deep/old.pyo"), ("stray", "deep/old.pyo", "is bytecode")),
        (
            write("__init__.py", "import os\n", again=False),
            ("digest", "metadata.json", "__init__.py does not match its digest"),
        ),
        (write("new.py", again=False), ("digest", "metadata.json", "new.py is not in the digest")),
        (
            lambda folder: (folder / "metadata.json").unlink(),
            ("metadata", "metadata.json", "is missing"),
        ),
        (
            write("metadata.json", "{", again=False),
            (
                "metadata",
                "metadata.json",
                "is not JSON: Expecting property name enclosed in double quotes at line 1, column 2",
            ),
        ),
        (
            lambda folder: seal(folder, "cuda"),
            ("agreement", "metadata.json", "backend.type is cuda, and the variant is for cpu"),
        ),
        (
            lambda folder: seal(folder, archs=("9.0",)),
            ("agreement", "metadata.json", "backend.archs names capabilities in a variant for the CPU"),
        ),
        (
            write("_ops.py", OPS.format("from . import _other", STEM)),
            ("op-namespace", "_ops.py", f"imports _other, and the module is {STEM}"),
        ),
        (
            write("_ops.py", OPS.format(f"from . import {STEM}", "_relu_cpu_ffffffff")),
            ("op-namespace", "_ops.py", f"uses the namespace _relu_cpu_ffffffff, and the module is {STEM}"),
        ),
        (
            write("_ops.py", "not python"),
            ("op-namespace", "_ops.py", "names no torch.ops.<namespace>"),
        ),
        (
            lambda folder: (folder / "link.py").symlink_to("/etc/hostname"),
            ("link", "link.py", "is a symbolic link out of the variant"),
        ),
        (
            lambda folder: (folder / "linked").symlink_to("."),
            ("link", "linked", "is a symbolic link to a folder, which the digest leaves out"),
        ),
    ],
)
def test_each_change_is_noticed(change: Change, wanted: tuple[str, str, str], variant: Path) -> None:
    change(variant)

    assert wanted in broken(variant)


def test_a_missing_package_or_module_is_noticed(variant: Path) -> None:
    (variant / "__init__.py").unlink()
    (variant / abi_samples.NAME).unlink()
    seal(variant)

    assert [message for code, _, message in broken(variant) if code == "package"] == [
        "has no __init__.py",
        "has 0 extension modules instead of one",
    ]


def test_a_damaged_module_is_a_violation_of_its_own(variant: Path) -> None:
    (variant / abi_samples.NAME).write_bytes(b"\x7fELF")
    seal(variant)

    ((code, path, message),) = broken(variant)

    assert (code, path) == ("unreadable", abi_samples.NAME)
    assert message.startswith("is not a readable ELF library: ")


def test_a_namespace_without_a_hash_is_not_unique(variant: Path) -> None:
    (variant / "_ops.py").write_text(OPS.format("from . import _relu_cpu", "_relu_cpu"))
    (variant / abi_samples.NAME).rename(variant / "_relu_cpu.abi3.so")
    seal(variant)

    assert (
        "op-namespace",
        "_ops.py",
        "uses the namespace _relu_cpu, which is not _relu_cpu_<hash>",
    ) in broken(variant)


def test_the_name_of_the_folder_decides_unless_the_variant_is_given(variant: Path) -> None:
    other = variant.rename(variant.with_name("result"))

    assert [code for code, _, _ in broken(other)] == ["variant-name"]
    (violation,) = verify_variant(other, variant=parse(CPU)).violations
    assert violation.allowed == CPU


@pytest.mark.parametrize(
    "name",
    [
        "torch212-cxx11-cpu-x86_64-linux",
        "torch214-cxx11-cpu-x86_64-linux",
        "torch213-cxx11-cu130-x86_64-linux",
        "torch213-cxx11-cpu-aarch64-linux",
        "torch-stable-abi213-cpu-x86_64-linux",
    ],
)
def test_a_variant_does_not_become_another_by_renaming_its_folder(name: str, variant: Path) -> None:
    other = variant.rename(variant.with_name(name))

    (violation,) = [v for v in verify_variant(other).violations if v.code == "identity"]
    assert violation.message == (
        f"the id says that this is the build of {CPU.replace('-', '_')}, and the variant is {name}"
    )


def test_an_id_of_another_build_is_noticed(variant: Path) -> None:
    seal(variant, identity="_gelu_cpu_0123abcd_torch213_cxx11_cpu_x86_64_linux")

    assert [code for code, _, _ in broken(variant)] == ["identity"]


def test_the_public_builders_ids_name_no_variant(variant: Path) -> None:
    seal(variant, identity=STEM)

    verdict = verify_variant(variant)
    (result,) = [result for result in verdict.results if result.code == "identity"]
    assert verdict.ok
    assert result.skipped == "the id names no variant"


def test_headers_and_tables_are_the_projects_choice(variant: Path) -> None:
    write("include/scale.cuh")(variant)
    write("tables/tuned.bin")(variant)

    assert broken(variant) == []


def test_a_python_only_variant_is_judged_without_a_library(tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "torch-cuda"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    seal(folder, "cuda")
    assert broken(folder) == []

    (folder / "_ops.py").write_text(OPS.format("", "_relu_0123abcd"))
    seal(folder, "cuda", identity="_relu_0123abcd_torch_cuda")
    assert broken(folder) == []

    shutil.copy(library, folder)
    seal(folder, "cuda")
    assert ("package", abi_samples.NAME) in {(code, path) for code, path, _ in broken(folder)}


def test_rules_have_codes_of_their_own() -> None:
    codes = [rule.code for rule in TREE_RULES]

    assert len(codes) == len(set(codes))


def kbuild(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbuild", "abi", *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_judges_a_project_a_tree_a_variant_and_a_library(variant: Path) -> None:
    (variant.parent.parent / "build.toml").touch()
    for path in (variant.parent.parent, variant.parent, variant, variant / abi_samples.NAME):
        result = kbuild(path)
        assert (result.returncode, result.stderr) == (0, "")
        assert "GLIBC 2.14 <= 2.28" in result.stdout


def test_the_command_waits_for_no_pipe(variant: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    result = kbuild(tmp_path / "pipe.so")
    assert (result.returncode, "pipe.so is neither a file nor a folder" in result.stderr) == (2, True)
    (variant / metadata.FILE_NAME).unlink()
    os.mkfifo(variant / metadata.FILE_NAME)
    result = kbuild(variant)
    assert result.returncode == 1
    assert "metadata.json: violation[metadata]: is not a regular file" in result.stdout


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_what_is_called_as_a_variant_and_is_none_is_named(
    make: Callable[[Path], None], variant: Path
) -> None:
    make(variant.with_name("torch212-cxx11-cpu-x86_64-linux"))
    result = kbuild(variant.parent)
    assert result.returncode == 2
    assert "is called as a variant, and is no folder" in result.stderr


def test_the_command_exits_1_and_names_what_is_broken(variant: Path) -> None:
    write("notes.o")(variant)

    result = kbuild(variant.parent)

    assert result.returncode == 1
    assert "notes.o: violation[stray]: does not belong into a variant" in result.stdout
    assert "hint: remove it" in result.stdout


def test_the_command_speaks_json(variant: Path) -> None:
    write("notes.o")(variant)

    document = json.loads(kbuild(variant, "--json").stdout)

    assert (document["version"], document["ok"]) == (1, False)
    (verdict,) = document["verdicts"]
    (violation,) = [v for result in verdict["results"] for v in result["violations"]]
    assert violation["code"] == "stray"


def test_of_a_library_alone_the_command_says_what_it_could_not_judge(variant: Path) -> None:
    library = variant / abi_samples.NAME

    assert "not applicable: the PyTorch release is not known" in kbuild(library).stdout
    assert "symbols of PyTorch 2.13" in kbuild(library, "--torch", "2.13", "--compute", "cpu").stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such-path"], "no-such-path cannot be read: No such file or directory"),
        (["."], "holds no build variant"),
        ([".", "--torch", "2.13"], "--torch and --compute are for single libraries"),
        (["LIBRARY", "--torch", "new"], "--torch: 'new' is not a version"),
        (["LIBRARY", "--compute", "gpu"], "--compute: 'gpu' is not the compute part of a variant name"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    argv: list[str], message: str, variant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    result = kbuild(*(variant / abi_samples.NAME if word == "LIBRARY" else word for word in argv))

    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
