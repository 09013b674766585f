"""Findings about the user's files: values first, text or JSON at the very end."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad a finding is. Errors make `kbuild check` exit 1; warnings do under `--strict`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A place in a file: `path` relative to the project root with `/`, `line` and `column` counted from 1.

    `length` is in characters on that line, 1 if unknown.
    """

    path: str
    line: int = 1
    column: int = 1
    length: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace the characters from offset `start` to `end` of a file by `text`."""

    path: str
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """The user's file is wrong here. `code` is a stable kebab-case name; `hint` is the way out.

    `fix` is that way as edits, where it is safe to take without asking.
    """

    code: str
    message: str
    span: Span
    severity: Severity = Severity.ERROR
    hint: str | None = None
    fix: tuple[Edit, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "path": self.span.path,
            "line": self.span.line,
            "column": self.span.column,
            "hint": self.hint,
        }

    def as_text(self) -> str:
        head = f"{self.span}: {self.severity}[{self.code}]: {self.message}"
        return head if self.hint is None else f"{head}\n  hint: {self.hint}"


@dataclass(slots=True)
class Report:
    """A growing collection of diagnostics; rules only ever add."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self.sorted())

    def __len__(self) -> int:
        return len(self.diagnostics)

    def add(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def error(
        self, code: str, message: str, span: Span, *, hint: str | None = None, fix: tuple[Edit, ...] = ()
    ) -> None:
        self.add(Diagnostic(code=code, message=message, span=span, hint=hint, fix=fix))

    def warning(
        self, code: str, message: str, span: Span, *, hint: str | None = None, fix: tuple[Edit, ...] = ()
    ) -> None:
        self.add(
            Diagnostic(code=code, message=message, span=span, severity=Severity.WARNING, hint=hint, fix=fix)
        )

    def note(
        self, code: str, message: str, span: Span, *, hint: str | None = None, fix: tuple[Edit, ...] = ()
    ) -> None:
        self.add(
            Diagnostic(code=code, message=message, span=span, severity=Severity.NOTE, hint=hint, fix=fix)
        )

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics.extend(diagnostics)

    def sorted(self) -> list[Diagnostic]:
        """By file, line and column, so that output is stable."""
        return sorted(self.diagnostics, key=lambda d: (d.span.path, d.span.line, d.span.column, d.code))

    @property
    def errors(self) -> list[Diagnostic]:
        return [d for d in self.sorted() if d.severity is Severity.ERROR]

    @property
    def ok(self) -> bool:
        return not self.errors

    def as_text(self) -> str:
        return "\n".join(d.as_text() for d in self.sorted())

    def as_json(self) -> dict[str, Any]:
        return {"version": 1, "ok": self.ok, "diagnostics": [d.as_json() for d in self.sorted()]}
