"""Edits of arrays keep every other character."""

import pytest

from kbuild.config.edits import append_entry, apply_edits, remove_entry
from kbuild.config.source import Source
from kbuild.diagnostics import Report


def parse(text: str) -> Source:
    source = Source.parse("build.toml", text, Report())
    assert source is not None
    return source


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = []", 'a = ["x"]'),
        ('a = ["b"]', 'a = ["x", "b"]'),
        ('a = ["b", "c",]', 'a = ["b", "x", "c",]'),
        ('a = [\n    "b",  # why\n]', 'a = [\n    "x",\n    "b",  # why\n]'),
        ('a = [\n  "b", # one\n  "c" # two\n]', 'a = [\n  "b", # one\n  "x",\n  "c" # two\n]'),
    ],
)
def test_append(before: str, after: str) -> None:
    source = parse(before)
    text = apply_edits(before, append_entry(source, ("a",), "x"))
    assert text == after
    assert sorted(parse(text).data["a"]) == sorted([*source.data["a"], "x"])


@pytest.mark.parametrize(
    ("before", "index", "after"),
    [
        ('a = ["b"]', 0, "a = []"),
        ('a = ["b", "c"]', 0, 'a = ["c"]'),
        ('a = ["b", "c"]', 1, 'a = ["b"]'),
        ('a = [\n  "b",\n  "c",\n]', 1, 'a = [\n  "b",\n]'),
        ('a = ["#b", "c"]', 0, 'a = ["c"]'),
        ('a = [\n  "b", # why\n  "c",\n]', 0, 'a = [\n  "b", # why\n  "c",\n]'),
    ],
)
def test_remove(before: str, index: int, after: str) -> None:
    assert apply_edits(before, remove_entry(parse(before), ("a",), index)) == after


def test_edits_that_overlap_are_done_one_at_a_time() -> None:
    text = 'a = ["b", "b", "b"]'
    edits = (*remove_entry(parse(text), ("a",), 1), *remove_entry(parse(text), ("a",), 2))
    assert apply_edits(text, edits) in ('a = ["b", "b"]', 'a = ["b"]')
