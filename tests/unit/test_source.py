"""Positions in build.toml: the scanner against the real parser's tree."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbuild.config.source import Path, Source
from kbuild.diagnostics import Report

TRICKY = '''# comment with = and [brackets]
title = "a # no comment"
"quoted.key" = 'x'
dotted . "in ner".deep = 1979-05-27 07:32:00Z # after
numbers = [1, 2.5e+3, # one
  -inf, [true, "]"], ]
empty = {}
inline = { a = { b = ["}", 2] }, "c d" = """}
}""" }
text = """
one = 1 \\"""
[no.table]
"""
raw = \'\'\'C:\\no'\'\'\'

[ table . "sub.x" ]
key = "é" # ünïcode
other = "after"
[[list]]
a = 1
[[list]]
a = 2
[list.inner]
b = 3
[[list.deep]]
c = 4
[[list.deep]]
c = 5
[table]
late = 1
'''


def paths(value: Any, path: Path = ()) -> set[Path]:
    found = {path} if path else set()
    match value:
        case dict():
            for key, entry in value.items():
                found |= paths(entry, (*path, key))
        case list():
            for index, entry in enumerate(value):
                found |= paths(entry, (*path, index))
    return found


def parse(text: str) -> Source:
    report = Report()
    source = Source.parse("build.toml", text, report)
    assert source is not None, report.as_text()
    return source


@pytest.mark.parametrize("text", [TRICKY, TRICKY.replace("\n", "\r\n")])
def test_every_path_of_the_parser_has_a_place(text: str) -> None:
    source = parse(text)
    known = set(source.keys) | set(source.values)
    # Parents that only appear inside a dotted key or header are keys too.
    assert paths(source.data) <= known


def text_at(source: Source, span: Any) -> str:
    return source.line(span.line)[span.column - 1 : span.column - 1 + span.length]


def test_places_are_exact() -> None:
    source = parse(TRICKY)
    assert text_at(source, source.key("dotted", "in ner", "deep")) == "deep"
    assert text_at(source, source.value("dotted", "in ner", "deep")) == "1979-05-27 07:32:00Z"
    assert text_at(source, source.value("numbers", 2)) == "-inf"
    assert text_at(source, source.value("numbers", 3, 1)) == '"]"'
    assert text_at(source, source.value("inline", "a", "b", 0)) == '"}"'
    assert text_at(source, source.key("inline", "c d")) == '"c d"'
    assert text_at(source, source.key("table", "sub.x")) == '[ table . "sub.x" ]'
    assert text_at(source, source.value("table", "sub.x", "other")) == '"after"'
    assert text_at(source, source.value("list", 1, "deep", 1, "c")) == "5"
    assert source.value("list", 1, "deep", 1, "c").line == 28
    assert text_at(source, source.key("table")) == "[table]"


def test_unknown_path_falls_back_to_its_parent() -> None:
    source = parse('[general]\nname = "x"\n')
    assert (source.key("general", "license").line, source.key("nowhere").line) == (1, 1)


_KEY = st.text(alphabet='abc.-_ "é#[', min_size=1, max_size=5)
_LEAF = st.one_of(st.integers(), st.booleans(), st.text(alphabet="ab\"'\\\n#[]{},=é", max_size=8))


def _toml(value: Any) -> str:
    import json

    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return json.dumps(value)
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"


_VALUE = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEY, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(_KEY, _VALUE, max_size=4))
def test_any_document_is_indexed_whole(document: dict[str, Any]) -> None:
    text = "\n".join(f"{_toml(key)} = {_toml(value)}" for key, value in document.items())
    source = parse(text)
    assert source.data == tomllib.loads(text)
    assert paths(source.data) <= set(source.keys) | set(source.values)
    for span in [source.value(*path) for path in source.values]:
        assert 1 <= span.line <= text.count("\n") + 1
        assert span.column + span.length - 1 <= len(source.line(span.line))


@given(st.text(alphabet="ab=[]{}\"'#.\n, 1\\", max_size=40))
def test_any_text_is_parsed_or_refused_in_place(text: str) -> None:
    report = Report()
    source = Source.parse("build.toml", text, report)
    assert (source is None) == (len(report) == 1)
    for diagnostic in report:
        assert 1 <= diagnostic.span.line <= text.count("\n") + 1
