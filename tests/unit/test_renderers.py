"""One report in every format."""

import json
from pathlib import Path

from kbuild.diagnostics import Report, Span
from kbuild.renderers import Format, render


def report() -> Report:
    found = Report()
    found.error("one", "first: 100%", Span(path="a,b.toml", line=2, column=3, length=4), hint="do\nthis")
    found.warning("two", "second", Span(path="gone.h", line=7, column=1))
    found.note("three", "third", Span(path="a,b.toml", line=1, column=1))
    return found


def shown(form: Format, root: Path) -> str:
    (root / "a,b.toml").write_text("one\n\t name = 1\n")
    return render(report(), form, root=root, rules={"one": "What one is."}, version="1.2")


def test_text_has_the_line_and_a_caret(tmp_path: Path) -> None:
    assert shown(Format.TEXT, tmp_path) == (
        "a,b.toml:1:1: note[three]: third\n  1 | one\n    | ^\n"
        "a,b.toml:2:3: error[one]: first: 100%\n  2 | \t name = 1\n    | \t ^^^^\n  hint: do\nthis\n"
        "gone.h:7:1: warning[two]: second"
    )


def test_json_is_the_documented_shape(tmp_path: Path) -> None:
    answer = json.loads(shown(Format.JSON, tmp_path))
    assert (answer["version"], answer["ok"], len(answer["diagnostics"])) == (1, False, 3)


def test_sarif(tmp_path: Path) -> None:
    (run,) = json.loads(shown(Format.SARIF, tmp_path))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["one", "three", "two"]
    assert rules[0]["shortDescription"]["text"] == "What one is."
    levels = {result["ruleId"]: result["level"] for result in run["results"]}
    assert levels == {"one": "error", "two": "warning", "three": "note"}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    place = run["results"][1]["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 2, "startColumn": 3, "endColumn": 7}


def test_github_annotations_are_escaped(tmp_path: Path) -> None:
    lines = shown(Format.GITHUB, tmp_path).split("\n")
    assert lines[0].startswith("::notice ")
    assert lines[1] == (
        "::error file=a%2Cb.toml,line=2,col=3,endColumn=7,title=one::first: 100%25%0Ahint: do%0Athis"
    )
