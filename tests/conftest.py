"""What every room's tests share: projects made from the fixtures."""

import shutil
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"

# What is started in the background of a script ignores interrupts, and so would every process that the tests start
# and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Fixtures: hub, new, old.
pytest_plugins = ["hubs"]

# Fixture projects have tests of their own.
collect_ignore = ["fixtures"]


@pytest.fixture
def base_project(tmp_path: Path) -> Path:
    """A small valid project, outside of any git work tree."""
    root = tmp_path / "project"
    shutil.copytree(FIXTURES / "accepted" / "base", root)
    return root


@pytest.fixture
def make_project(base_project: Path) -> Callable[[Path], Path]:
    """Lay a fixture's files over the base project; its `expected.toml` may also remove, link and create files."""

    def make(overlay: Path) -> Path:
        shutil.copytree(overlay, base_project, dirs_exist_ok=True)
        expected = base_project / "expected.toml"
        if expected.exists():
            wanted = tomllib.loads(expected.read_text(encoding="utf-8"))
            expected.unlink()
            for name in wanted.get("remove", []):
                (base_project / name).unlink()
            for name, target in wanted.get("links", {}).items():
                (base_project / name).unlink(missing_ok=True)
                (base_project / name).symlink_to(target)
            for name, text in wanted.get("create", {}).items():
                (base_project / name).write_text(text, encoding="utf-8")
            for name, size in wanted.get("sizes", {}).items():
                (base_project / name).write_bytes(b" " * size)
        return base_project

    return make
