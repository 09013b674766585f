"""The JSON Schema of `build.toml`, from the same description that validates it; editors complete by it."""

from typing import Any

from kbuild.config.kinds import (
    LARGEST,
    Choice,
    Flag,
    Key,
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
from kbuild.config.schema import BUILD, FRAMEWORKS


def json_schema() -> dict[str, Any]:
    """A draft-07 schema, which TOML language servers read."""
    schema = _of(BUILD)
    # A framework table, and exactly one.
    schema["oneOf"] = [{"required": [name]} for name in FRAMEWORKS]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "build.toml of a PyTorch kernel, edition 5",
        **schema,
    }


def _of(kind: Kind) -> dict[str, Any]:
    match kind:
        case Text(pattern=None):
            return {"type": "string"}
        case Text(pattern=pattern, what=what) | Parsed(pattern=pattern, what=what):
            return {"type": "string", "pattern": _ecma(pattern), "description": what}
        case Natural(only=None):
            return {"type": "integer", "minimum": 0, "maximum": LARGEST}
        case Natural(only=only):
            return {"const": only}
        case Flag():
            return {"type": "boolean"}
        case Choice(values=values):
            return {"enum": list(values)}
        case ListOf(item=item, non_empty=non_empty):
            return {"type": "array", "items": _of(item), **({"minItems": 1} if non_empty else {})}
        case Table(keys=keys):
            return _table(keys)
        case MapOf(value=value):
            return {"type": "object", "additionalProperties": _of(value)}
        case TextOrTable(text=text, table=table):
            return {"anyOf": [_of(text), _of(table)]}
        case Tagged(tag=tag, tables=tables):
            return {
                "type": "object",
                "required": [tag],
                "properties": {tag: {"enum": list(tables)}},
                "allOf": [
                    {"if": {"properties": {tag: {"const": value}}, "required": [tag]}, "then": _of(table)}
                    for value, table in tables.items()
                ],
            }


def _table(keys: tuple[Key, ...]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key in keys:
        entry = _of(key.kind)
        if key.doc:
            entry = {**entry, "description": key.doc}
        properties |= dict.fromkeys((key.name, *key.aliases), entry)
    required = [key.name for key in keys if key.required]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _ecma(pattern: str | None) -> str:
    # `$` is the very end in ECMA 262, so the guard that Python needs against a last line break is not wanted.
    return (pattern or "").removesuffix(r"(?!\n)")
