"""A folder per sin: each is refused at the exact place with the exact code, and the base project is not."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kbuild.explain import explanations
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


# Shown where git, or rights that git does not keep, are made by the test itself.
ELSEWHERE = {
    "git-failed",
    "untracked-project",
    "untracked-source",
    "untracked-file",
    "unreadable",
    "uncommitted-changes",
}


def test_every_rule_has_a_refused_and_an_accepted_project() -> None:
    refused: set[str] = set()
    for path in (FIXTURES / "refused").glob("*/expected.toml"):
        refused |= set(re.findall(r"\[([a-z0-9-]+)\]\"", path.read_text(encoding="utf-8")))
    accepted: set[str] = set()
    for path in (FIXTURES / "accepted").glob("*/expected.toml"):
        accepted |= set(tomllib.loads(path.read_text(encoding="utf-8")).get("near", []))
    codes = emitted_codes()
    assert codes - refused - ELSEWHERE == set(), "codes without a project that is refused for them"
    assert codes - accepted - ELSEWHERE == set(), "codes without a project that comes near and passes"
    assert (refused | accepted) - codes == set(), "codes that no rule gives"


def test_every_code_is_explained_and_no_other() -> None:
    assert set(explanations()) == emitted_codes()
    for entry in explanations().values():
        for text in (entry.what, entry.why, entry.fix):
            assert text.strip() == text, entry.code
            assert text.endswith((".", ".)")), entry.code


def emitted_codes() -> set[str]:
    """Every code that a rule of the source can give."""
    package = Path(__file__).parents[2] / "kbuild"
    files = [*(package / "config").glob("*.py"), *(package / "lints").glob("*.py")]
    files += [
        package / "layout.py",
        package / "project.py",
        package / "suppress.py",
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if path.exists())
    return {
        *re.findall(r'(?:error|warning|note|add)\(\s*"([a-z0-9-]+)"', text),
        *re.findall(r'code(?:: str)?(?:, why)? ?= ?\(?\s*"([a-z0-9-]+)"', text),
    }
