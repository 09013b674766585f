"""The JSON Schema against the validation that it is made from."""

import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbuild.config.json_schema import json_schema
from kbuild.config.kinds import (
    Choice,
    Flag,
    Kind,
    ListOf,
    MapOf,
    Natural,
    Parsed,
    Table,
    Tagged,
    Text,
    TextOrTable,
)
from kbuild.config.schema import BUILD, read_config
from kbuild.config.source import Source
from kbuild.diagnostics import Report

FIXTURES = Path(__file__).parents[1] / "fixtures"
VALIDATOR = jsonschema.Draft7Validator(json_schema())
# What a schema of single values cannot say.
BETWEEN_FIELDS = {"bad-kernel-depends"}


def verdicts(text: str) -> tuple[bool, bool] | None:
    """(kbuild, JSON Schema), or None where the text is not TOML."""
    report = Report()
    source = Source.parse("build.toml", text, report)
    if source is None:
        return None
    read_config(source, report)
    ours = {diagnostic.code for diagnostic in report.errors} - BETWEEN_FIELDS
    return not ours, VALIDATOR.is_valid(source.data)


def test_it_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    "path",
    sorted(FIXTURES.glob("*/*/build.toml")),
    ids=lambda path: f"{path.parents[1].name}-{path.parent.name}",
)
def test_same_verdict_on_every_fixture(path: Path) -> None:
    found = verdicts(path.read_text(encoding="utf-8-sig", errors="replace"))
    if found is not None:
        ours, theirs = found
        assert ours == theirs


def _any() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.booleans(), st.integers(-2, 6), st.text("a.9_-/", max_size=4), st.just([]), st.just({})
    )


def _values(kind: Kind) -> st.SearchStrategy[Any]:
    """Mostly right values, some that are nearly right and some that are not."""
    match kind:
        case Text():
            right: st.SearchStrategy[Any] = st.sampled_from(
                ["ab", "org/x", "https://a.b/c", "x-1", "Ab", "a\n", ""]
            )
        case Parsed():
            right = st.sampled_from(
                ["2.12", "9.0a", "8.0+PTX", "12", "2.10.0", "2.010", "9.0b", "2.x", "2.10\n", "٢.1"]
            )
        case Natural(only=only):
            right = st.just(only) if only is not None else st.sampled_from([0, 3, 2**63 - 1, 2**63, 2**64])
        case Flag():
            right = st.booleans()
        case Choice(values=values):
            right = st.sampled_from([*values, "other"])
        case ListOf(item=item):
            right = st.lists(_values(item), max_size=2)
        case Table(keys=keys):
            right = st.fixed_dictionaries(
                {key.name: _values(key.kind) for key in keys if key.required},
                optional={
                    **{key.name: _values(key.kind) for key in keys if not key.required},
                    "xyz": st.just(1),
                },
            )
        case MapOf(value=value):
            right = st.dictionaries(st.sampled_from(["a", "b"]), _values(value), max_size=2)
        case Tagged(tag=tag, tables=tables):
            right = st.one_of(*(_tagged(_values(table), tag, name) for name, table in tables.items()))
        case TextOrTable(text=text, table=table):
            right = st.one_of(_values(text), _values(table))
    return st.one_of(right, right, right, right, right, right, right, right, _any())


def _tagged(tables: st.SearchStrategy[Any], tag: str, name: str) -> st.SearchStrategy[Any]:
    return tables.map(lambda found: {**found, tag: name} if isinstance(found, dict) else found)


@given(_values(BUILD))
def test_same_verdict_on_any_document(document: Any) -> None:
    if not isinstance(document, dict):
        return
    text = "\n".join(f"{key} = {_toml(value)}" for key, value in document.items())
    found = verdicts(text)
    assert found is not None
    assert tomllib.loads(text) == document
    assert found[0] == found[1]


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str():
            return '"' + value.replace("\n", "\\n") + '"'
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return "{" + ", ".join(f'"{key}" = {_toml(entry)}' for key, entry in value.items()) + "}"
