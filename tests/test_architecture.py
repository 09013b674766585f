"""The rooms of the house and the arrows between them, read off the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbuild.errors import ExitCode, KbuildError

PACKAGE = Path(__file__).parents[1] / "kbuild"

LEAVES = {"errors", "diagnostics", "resources", "process", "text"}
# room -> the rooms that it may import; leaves may be imported by all.
ARROWS: dict[str, set[str]] = {
    "config": set(),
    "sources": {"config"},
    "layout": {"config", "sources"},
    "lints": {"config", "sources"},
    "explain": set(),
    "renderers": set(),
    "suppress": {"config", "explain"},
    "project": {"config", "sources", "layout", "lints", "variants", "suppress"},
    "variants": {"config"},
    "metadata": {"config"},
}
# Pure or nearly so; workers and commands build on them.
CORE = {*ARROWS, "toolchain"}
# Workers know the core and helpers, never each other.
WORKERS = {"abi", "hub", "build", "scaffold", "skills", "bench", "kernel_tests", "localhub", "migrate"}
# Nobody but a command starts the Hub that stands in for the real one.
FOR_COMMANDS_ONLY = {"localhub", "cli"}
HEAVY = {
    "tomlkit", "rich", "huggingface_hub", "elftools", "starlette", "uvicorn", "urllib3", "torch", "kernels",
    "kbuild.project", "kbuild.variants", "subprocess", "asyncio", "http.client", "tree_sitter",
}  # fmt: skip


def modules() -> Iterator[tuple[str, Path]]:
    """Every module as `room.sub`, without steps that run inside Nix and without templates."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in {"nix", "data"}:
            yield ".".join(part for part in parts if part != "__init__"), path


def imports(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str:
    return name.split(".")[1] if name.startswith("kbuild.") else ""


MODULES = dict(modules())


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_arrows(name: str) -> None:
    room = name.split(".", maxsplit=1)[0]
    used = {room_of(imported) for imported in imports(MODULES[name])} - {"", room, "__version__", *LEAVES}
    if room in LEAVES:
        allowed: set[str] = set()
    elif room in ARROWS:
        allowed = ARROWS[room]
    elif room in {"cli", "__main__"}:
        allowed = used
    else:
        allowed = used - WORKERS - FOR_COMMANDS_ONLY
    assert used <= allowed, f"kbuild.{name} must not import {sorted(used - allowed)}"


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("subprocess", {"process"}),
        ("torch", {"harness"}),
        ("huggingface_hub", {"hub"}),
        ("click", {"cli", "__main__"}),
    ],
)
def test_one_room_imports_it(package: str, home: set[str]) -> None:
    importers = {
        name.split(".")[0]
        for name, path in MODULES.items()
        if any(imported.split(".")[0] == package for imported in imports(path))
    }
    assert importers <= home


def test_only_commands_print() -> None:
    printing = {
        name
        for name, path in MODULES.items()
        if name.split(".")[0] != "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing == set()


def test_exit_codes_are_unique() -> None:
    codes = [error.exit_code for error in KbuildError.__subclasses__()]
    assert len(codes) == len(set(codes))
    assert set(codes) == set(ExitCode) - {ExitCode.OK}


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from kbuild.cli import cli; cli.main(['--help'], standalone_mode=False); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split("\n")[-2].split())
    assert "kbuild.cli" in loaded
    assert loaded & HEAVY == set()


def test_check_imports_nothing_heavy(base_project: Path) -> None:
    code = (
        "import sys; from kbuild.cli import cli; "
        f"cli.main(['check', {str(base_project)!r}], standalone_mode=False); print(*sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split("\n")[-2].split())
    assert "kbuild.project" in loaded
    assert loaded & (HEAVY - {"kbuild.project", "kbuild.variants", "subprocess"}) == set()
