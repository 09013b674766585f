"""Whatever lies in a project, check answers with findings inside the files: no traceback, no hang."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbuild import process
from kbuild.project import Project

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = [
    "build.toml",
    "torch-ext/torch_binding.cpp",
    "torch-ext/rms_norm/__init__.py",
    "cuda/norm.cu",
    "pyproject.toml",
]
BASE = {name: (FIXTURES / "accepted" / "tricky-sources" / name) for name in FILES}
ORIGINAL = {
    name: path.read_bytes() if path.exists() else b"[tool.kbuild.check]\nignore = []\n"
    for name, path in BASE.items()
}
PIECES = [
    b'"',
    b"'",
    b"[",
    b"]",
    b"{",
    b"}",
    b"(",
    b")",
    b"\\",
    b"/*",
    b"*/",
    b"//",
    b"#",
    b"\n",
    b"\r\n",
    b"\0",
]
PIECES += [
    b"\xff",
    "ü".encode(),
    b'R"x(',
    b'"""',
    b"::",
    b"=",
    b",",
    b"1.5",
    b"true",
    b"../",
    b"*",
    b"-",
    b"\t",
]


def no_git(argv: object, **_: object) -> process.Completed:
    raise FileNotFoundError("git")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("robust") / "project"
    shutil.copytree(FIXTURES / "accepted" / "base", root)
    shutil.copytree(FIXTURES / "accepted" / "tricky-sources", root, dirs_exist_ok=True)
    return root


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """One of the files with some of its bytes taken out, put in or moved."""
    name = draw(st.sampled_from(FILES))
    content = ORIGINAL[name]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 30)))
        insert = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)))
        content = content[:start] + insert + content[end:]
    return name, content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000, max_examples=300)
@given(damaged())
def test_any_damage_is_a_finding_and_never_a_traceback(project: Path, case: tuple[str, bytes]) -> None:
    name, content = case
    (project / name).write_bytes(content)
    try:
        found = Project.open(project, runner=no_git).report.sorted()
    finally:
        (project / name).write_bytes(ORIGINAL[name])
    for diagnostic in found:
        span = diagnostic.span
        assert span.line >= 1
        assert span.column >= 1
        path = project / span.path
        if path.is_file():
            lines = content.split(b"\n") if span.path == name else path.read_bytes().split(b"\n")
            # Python counts a form feed and the like as line ends, so one past the end is the most there can be.
            assert span.line <= len(lines) + 1
        diagnostic.as_json()


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("build.toml", b"x = " + b"[" * 5000 + b"]" * 5000, "toml-syntax"),
        ("build.toml", b"x = " + b"9" * 5000, "toml-syntax"),
        ("build.toml", b"[" + b".".join([b"a"] * 5000) + b"]", "unknown-key"),
        ("build.toml", b"x = " + b"{a=" * 5000 + b"1" + b"}" * 5000, "toml-syntax"),
        ("pyproject.toml", b"x = " + b"[" * 5000 + b"]" * 5000, "toml-syntax"),
        ("build.toml", b"x = " + b"[" * 400 + b"]" * 400, "unknown-key"),
        ("torch-ext/rms_norm/__init__.py", b"x = " + b"-" * 5000 + b"1", "python-syntax"),
        ("torch-ext/rms_norm/__init__.py", b"x = " + b"(" * 5000 + b")" * 5000, "python-syntax"),
        ("torch-ext/rms_norm/__init__.py", b"x = 1\0", "python-syntax"),
        (
            "torch-ext/rms_norm/__init__.py",
            b"if a: 1\n" + b"elif a: 1\n" * 950 + b"import nowhere",
            "foreign-import",
        ),
        ("torch-ext/rms_norm/__init__.py", b"x: a" + b"|a" * 900, "python-floor"),
        (
            "torch-ext/rms_norm/__init__.py",
            b"if a: 1\n" + b"elif a: 1\n" * 2500 + b"import nowhere",
            "foreign-import",
        ),
    ],
)
def test_endless_nesting_is_a_finding(project: Path, name: str, content: bytes, code: str) -> None:
    (project / name).write_bytes(content)
    try:
        assert code in [diagnostic.code for diagnostic in Project.open(project, runner=no_git).report]
    finally:
        (project / name).write_bytes(ORIGINAL[name])


@contextmanager
def as_nobody() -> Iterator[None]:
    """With the rights of an ordinary user, whom permissions bind."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("closed", "found"),
    [
        ("cuda/norm.cu", "cuda/norm.cu"),
        ("cuda", "cuda/norm.cu"),
        ("torch-ext", "torch-ext/torch_binding.cpp"),
        ("torch-ext/rms_norm", "torch-ext/rms_norm"),
        ("torch-ext/rms_norm/__init__.py", "torch-ext/rms_norm/__init__.py"),
        ("tests", "tests"),
        ("tests/test_norm.py", "tests/test_norm.py"),
        ("cuda/extra.cuh", "cuda/extra.cuh"),
        ("pyproject.toml", "pyproject.toml"),
    ],
)
def test_what_cannot_be_read_is_named(closed: str, found: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "project")
        shutil.copytree(FIXTURES / "accepted" / "base", root)
        (root / "cuda" / "extra.cuh").write_text("")
        (root / "pyproject.toml").write_text("")
        with (root / "cuda" / "norm.cuh").open("a") as header:
            header.write('#include "extra.cuh"\n')
        for path in [Path(folder), root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        mode = (root / closed).stat().st_mode
        (root / closed).chmod(0)
        try:
            with as_nobody():
                report = Project.open(root, runner=no_git).report
        finally:
            (root / closed).chmod(mode)
    unreadable = [d for d in report if d.code == "unreadable"]
    assert [str(d.span) for d in unreadable] == [f"{found}:1:1"], report.as_text()
    assert "Permission denied" in unreadable[0].message


def test_long_sums_of_strings(project: Path) -> None:
    name = "torch-ext/rms_norm/__init__.py"
    text = "import torch\ntorch.library.define(" + " + ".join(['"rms::norm"'] * 800) + ")\n"
    (project / name).write_text(text)
    try:
        found = Project.open(project, runner=no_git).report
        assert "fixed-namespace" in [diagnostic.code for diagnostic in found]
    finally:
        (project / name).write_bytes(ORIGINAL[name])
