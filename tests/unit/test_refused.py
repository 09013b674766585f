"""A folder per sin: each is refused at the exact place with the exact code, and the base project is not."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kbuild.project import Project

FIXTURES = Path(__file__).parents[1] / "fixtures"
SINS = sorted(path.name for path in (FIXTURES / "refused").iterdir())


def heads(project: Project) -> list[str]:
    """Each finding as `path:line:column: severity[code]`."""
    return [f"{d.span}: {d.severity}[{d.code}]" for d in project.report]


@pytest.mark.parametrize("sin", SINS)
def test_sin_is_refused(sin: str, make_project: Callable[[Path], Path]) -> None:
    folder = FIXTURES / "refused" / sin
    expected = tomllib.loads((folder / "expected.toml").read_text(encoding="utf-8"))["findings"]
    project = Project.open(make_project(folder))
    assert heads(project) == expected, project.report.as_text()


@pytest.mark.parametrize("name", sorted(path.name for path in (FIXTURES / "accepted").iterdir()))
def test_good_project_passes(name: str, make_project: Callable[[Path], Path]) -> None:
    project = Project.open(make_project(FIXTURES / "accepted" / name))
    assert not project.report.diagnostics, project.report.as_text()
    assert project.config is not None


def test_every_code_in_the_source_has_a_sin() -> None:
    """Codes that need git or another file's state are tested where that state is made."""
    elsewhere = {"git-failed", "untracked-project", "untracked-source", "untracked-file"}
    sources = Path(__file__).parents[2] / "kbuild"
    files = [*(sources / "config").glob("*.py"), sources / "layout.py", sources / "project.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    calls = re.findall(r'(?:error|warning|add)\(\s*"([a-z0-9-]+)"', text)
    codes = {*calls, *re.findall(r'code(?:: str)? ?= ?"([a-z0-9-]+)"', text)}
    shown = set()
    for path in (FIXTURES / "refused").glob("*/expected.toml"):
        shown |= set(re.findall(r"\[([a-z0-9-]+)\]\"", path.read_text(encoding="utf-8")))
    assert codes - shown - elsewhere == set()
