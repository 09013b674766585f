"""The shapes that values of `build.toml` can have, as data: one description validates and documents them.

`read` never stops at the first problem: it reports each one at its place and returns what could be read, with
`Missing` in place of what could not.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kbuild.config.model import Capability, Version
from kbuild.config.source import Path, Source
from kbuild.diagnostics import Report
from kbuild.text import did_you_mean


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A string. `pattern` must match it whole; `example` and `code` go into the message."""

    what: str = "a string"
    pattern: str | None = None
    code: str = "bad-value"
    example: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A string that `parse` turns into a value, raising ValueError where it cannot."""

    what: str
    parse: Callable[[str], object]
    pattern: str
    code: str
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Natural:
    """A whole number, 0 or more, and at most what Nix and JSON carry; `only` pins it to one value."""

    only: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """true or false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a fixed set of strings."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """An array whose elements all have one kind."""

    item: "Kind"
    non_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a table. `aliases` are other spellings that are accepted without a word."""

    name: str
    kind: "Kind"
    required: bool = False
    doc: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a closed set of keys."""

    keys: tuple[Key, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf:
    """A table whose keys the author chooses and whose values all have one kind."""

    value: "Kind"
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A table whose closed set of keys depends on the value of the key `tag`."""

    tag: str
    tables: Mapping[str, Table]
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOrTable:
    """Either a string kind or a table kind, told apart by the TOML type."""

    text: "Text | Parsed"
    table: Table


Kind = Text | Parsed | Natural | Flag | Choice | ListOf | Table | MapOf | Tagged | TextOrTable


def _parse_minor(text: str) -> Version:
    return Version.parse(text).minor_release


def _parse_capability(text: str) -> Capability:
    return Capability.parse(text)


TEXT = Text()
TEXTS = ListOf(item=TEXT)
VERSION = Parsed(
    what="a version, written as a string",
    parse=_parse_minor,
    pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})*$",
    code="bad-version",
    example='"2.12"',
)
# It becomes a part of variant names, so there is one way to write it.
ABI_VERSION = Parsed(
    what="a stable ABI, which belongs to a minor release and is written as major and minor",
    parse=_parse_minor,
    pattern=r"^[0-9]\.(0|[1-9][0-9]?)(\.0)?$",
    code="bad-version",
    example='"2.10"',
)
CAPABILITY = Parsed(
    what="a CUDA compute capability",
    parse=_parse_capability,
    pattern=r"^[0-9]+\.[0-9][af]?(\+PTX)?$",
    code="bad-capability",
    example='"8.0", "9.0a", "10.0f" or "12.0+PTX"',
)


def read(kind: Kind, value: object, path: Path, source: Source, report: Report) -> Any:
    """The value as the kind understands it (tables as dicts of the valid keys), or MISSING."""
    match kind:
        case Natural(only=only):
            return _read_natural(only, value, path, source, report)
        case Flag():
            return (
                value
                if isinstance(value, bool)
                else _wrong_type("true or false", value, path, source, report)
            )
        case ListOf():
            return _read_list(kind, value, path, source, report)
        case Table() | MapOf() | Tagged():
            if not isinstance(value, dict):
                return _wrong_type("a table", value, path, source, report)
            return _read_table(kind, value, path, source, report)
        case TextOrTable(text=text, table=table):
            return read(table if isinstance(value, dict) else text, value, path, source, report)
        case Text(what=what) | Parsed(what=what):
            if not isinstance(value, str):
                return _wrong_type(what, value, path, source, report)
            return _read_text(kind, value, path, source, report)
        case Choice(values=values):
            if not isinstance(value, str):
                return _wrong_type("a string", value, path, source, report)
            if value in values:
                return value
            report.error(
                "bad-value",
                f"{value!r} is not a possible value of {_name(path)}.{did_you_mean(value, values)}",
                source.value(*path),
                hint=f"use one of: {', '.join(values)}",
            )
            return MISSING


def _read_natural(only: int | None, value: object, path: Path, source: Source, report: Report) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        return _wrong_type("a whole number", value, path, source, report)
    if not 0 <= value <= LARGEST or (only is not None and value != only):
        wanted = str(only) if only is not None else "0 or more" if value < 0 else f"at most {LARGEST}"
        report.error("bad-value", f"{_name(path)} must be {wanted}, not {value}", source.value(*path))
        return MISSING
    return value


def _read_text(kind: Text | Parsed, value: str, path: Path, source: Source, report: Report) -> Any:
    hint = None if kind.example is None else f"for example {kind.example}"
    if kind.pattern is None or re.fullmatch(kind.pattern, value) is not None:
        if isinstance(kind, Text):
            return value
        try:
            return kind.parse(value)
        except ValueError:
            pass
    report.error(kind.code, f"{value!r} is not {kind.what}", source.value(*path), hint=hint)
    return MISSING


def _read_list(kind: ListOf, value: object, path: Path, source: Source, report: Report) -> Any:
    if not isinstance(value, list):
        return _wrong_type("an array", value, path, source, report)
    if kind.non_empty and not value:
        report.error("bad-value", f"{_name(path)} must not be empty", source.value(*path))
        return MISSING
    items = [read(kind.item, item, (*path, index), source, report) for index, item in enumerate(value)]
    return [item for item in items if item is not MISSING]


def _read_table(
    kind: Table | MapOf | Tagged, value: dict[str, Any], path: Path, source: Source, report: Report
) -> Any:
    match kind:
        case MapOf(value=item):
            entries = {key: read(item, entry, (*path, key), source, report) for key, entry in value.items()}
            return {key: entry for key, entry in entries.items() if entry is not MISSING}
        case Tagged(tag=tag, tables=tables):
            if tag not in value:
                _missing_key(tag, f"one of: {', '.join(tables)}", path, source, report)
                return MISSING
            choice = read(Choice(values=tuple(tables)), value[tag], (*path, tag), source, report)
            if choice is MISSING:
                return MISSING
            return _read_keys(tables[choice], value, path, source, report, siblings=tables)
        case Table():
            return _read_keys(kind, value, path, source, report, siblings={})


def _read_keys(
    table: Table,
    value: dict[str, Any],
    path: Path,
    source: Source,
    report: Report,
    *,
    siblings: Mapping[str, Table],
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    known = {spelling: key for key in table.keys for spelling in (key.name, *key.aliases)}
    for name, entry in value.items():
        key = known.get(name)
        if key is None:
            _unknown_key(name, table, path, source, report, siblings=siblings)
            continue
        found = read(key.kind, entry, (*path, name), source, report)
        if found is not MISSING:
            result[key.name] = found
    for key in table.keys:
        if key.required and not any(spelling in value for spelling in (key.name, *key.aliases)):
            _missing_key(key.name, key.doc, path, source, report)
    return result


def _unknown_key(
    name: str, table: Table, path: Path, source: Source, report: Report, *, siblings: Mapping[str, Table]
) -> None:
    owners = [tag for tag, other in siblings.items() if any(key.name == name for key in other.keys)]
    where = f" in {_name(path)}" if path else ""
    if owners:
        message = f"key {name!r} does not belong{where}: it is for backend {' and '.join(owners)} only"
    else:
        message = f"unknown key {name!r}{where}.{did_you_mean(name, [key.name for key in table.keys])}"
    report.error(
        "unknown-key",
        message,
        source.key(*path, name),
        hint=f"known keys: {', '.join(key.name for key in table.keys)}",
    )


def _missing_key(name: str, doc: str, path: Path, source: Source, report: Report) -> None:
    report.error(
        "missing-key",
        f"required key {name!r} is missing" + (f" in {_name(path)}" if path else ""),
        source.key(*path),
        hint=doc or None,
    )


def _wrong_type(wanted: str, value: object, path: Path, source: Source, report: Report) -> Any:
    report.error(
        "wrong-type", f"{_name(path)} must be {wanted}, not {_type_name(value)}", source.value(*path)
    )
    return MISSING


def _type_name(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _name(path: Path) -> str:
    """`general.backends[2]`: the path as an author would say it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
