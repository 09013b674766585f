"""A report as text for people, and as JSON, SARIF and GitHub annotations for machines."""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from kbuild.diagnostics import Diagnostic, Report, Severity


class Format(StrEnum):
    """What `--format` can be."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def render(report: Report, form: Format, *, root: Path, rules: Mapping[str, str], version: str) -> str:
    """The report in one format; `rules` are codes with their short descriptions, for formats that carry them."""
    match form:
        case Format.TEXT:
            return "\n".join(_text(diagnostic, root) for diagnostic in report)
        case Format.JSON:
            return json.dumps(report.as_json(), indent=2)
        case Format.SARIF:
            return json.dumps(_sarif(report, rules, version), indent=2)
        case Format.GITHUB:
            return "\n".join(_annotation(diagnostic) for diagnostic in report)


def _text(diagnostic: Diagnostic, root: Path) -> str:
    """The finding, the line it speaks of with a caret below, and the hint."""
    head = f"{diagnostic.span}: {diagnostic.severity}[{diagnostic.code}]: {diagnostic.message}"
    lines = [head, *_excerpt(diagnostic, root)]
    if diagnostic.hint is not None:
        lines.append(f"  hint: {diagnostic.hint}")
    return "\n".join(lines)


def _excerpt(diagnostic: Diagnostic, root: Path) -> list[str]:
    span = diagnostic.span
    try:
        text = (root / span.path).read_text(encoding="utf-8-sig").split("\n")[span.line - 1].rstrip("\r")
    except (OSError, UnicodeDecodeError, IndexError):
        return []
    if not text.strip() or len(text) > 200:
        return []
    # Tabs stay tabs in the line of the caret, so that the two line up however wide a tab is.
    indent = "".join("\t" if character == "\t" else " " for character in text[: span.column - 1])
    width = max(1, min(span.length, len(text) - span.column + 1))
    number = str(span.line)
    return [f"  {number} | {text}", f"  {' ' * len(number)} | {indent}{'^' * width}"]


def _sarif(report: Report, rules: Mapping[str, str], version: str) -> dict[str, Any]:
    """SARIF 2.1.0 (OASIS), as code scanning reads it."""
    levels = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
    found = sorted({diagnostic.code for diagnostic in report})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kbuild",
                        "version": version,
                        "rules": [
                            {"id": code, "shortDescription": {"text": rules.get(code, code)}}
                            for code in found
                        ],
                    }
                },
                "results": [
                    {
                        "ruleId": diagnostic.code,
                        "ruleIndex": found.index(diagnostic.code),
                        "level": levels[diagnostic.severity],
                        "message": {"text": _with_hint(diagnostic)},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": diagnostic.span.path},
                                    "region": {
                                        "startLine": diagnostic.span.line,
                                        "startColumn": diagnostic.span.column,
                                        "endColumn": diagnostic.span.column + diagnostic.span.length,
                                    },
                                }
                            }
                        ],
                    }
                    for diagnostic in report
                ],
            }
        ],
    }


def _annotation(diagnostic: Diagnostic) -> str:
    """A workflow command of GitHub Actions."""
    level = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}[
        diagnostic.severity
    ]
    span = diagnostic.span
    place = f"file={_property(span.path)},line={span.line},col={span.column},endColumn={span.column + span.length}"
    return f"::{level} {place},title={_property(diagnostic.code)}::{_data(_with_hint(diagnostic))}"


def _with_hint(diagnostic: Diagnostic) -> str:
    return diagnostic.message if diagnostic.hint is None else f"{diagnostic.message}\nhint: {diagnostic.hint}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
