"""Leaving findings out on purpose: `[tool.kbuild.check]` in the project's `pyproject.toml`.

    [tool.kbuild.check]
    ignore = ["whole-torch"]

    [tool.kbuild.check.per-file-ignores]
    "torch-ext/my_kernel/vendored/*" = ["foreign-import"]

Patterns are those of `fnmatch` on the path relative to the project; `*` crosses folders. Findings about
`build.toml` itself, without which it cannot be read, cannot be left out.
"""

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbuild.config.source import Source
from kbuild.diagnostics import Diagnostic, Report, Span
from kbuild.explain import explanations

FILE = "pyproject.toml"
# Without these the project has no configuration, so there is nothing that could go on.
_FOR_GOOD = frozenset(
    (
        "toml-syntax",
        "not-utf-8",
        "byte-order-mark",
        "unknown-edition",
        "missing-key",
        "unknown-key",
        "wrong-type",
    )
)


_TABLE = ("tool", "kbuild", "check")
_EXAMPLE = 'ignore = ["code"], or [tool.kbuild.check.per-file-ignores] "pattern" = ["code"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Findings of `code` in files that match `pattern` are left out; `span` is where the author says so."""

    pattern: str
    code: str
    span: Span

    def covers(self, diagnostic: Diagnostic) -> bool:
        """Whether the finding is one that this leaves out."""
        return diagnostic.code == self.code and fnmatch.fnmatchcase(diagnostic.span.path, self.pattern)


def suppress(root: Path, report: Report) -> Report:
    """The report without what the project leaves out; suppressions that are wrong or idle are findings."""
    path = root / FILE
    if not path.is_file():
        return report
    result = Report()
    source = Source.parse(FILE, path.read_text(encoding="utf-8", errors="replace"), result)
    suppressions = () if source is None else tuple(_read(source, result))
    used: set[Suppression] = set()
    for diagnostic in report:
        covering = [entry for entry in suppressions if entry.covers(diagnostic)]
        used |= set(covering)
        if not covering:
            result.add(diagnostic)
    for entry in suppressions:
        if entry not in used:
            result.warning(
                "unused-ignore",
                f"no finding of {entry.code} is left out here",
                entry.span,
                hint="remove it from [tool.kbuild.check]",
            )
    return result


def _read(source: Source, report: Report) -> Iterator[Suppression]:
    table: Any = source.data
    for name in _TABLE:
        table = table.get(name, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        table = {}
    lists: list[tuple[str, tuple[str, ...], object]] = []
    for name, value in table.items():
        if name == "ignore":
            lists.append(("*", (*_TABLE, name), value))
        elif name == "per-file-ignores" and isinstance(value, dict):
            lists += [(pattern, (*_TABLE, name, pattern), codes) for pattern, codes in value.items()]
        else:
            what = f"{name} is no table" if name == "per-file-ignores" else f"unknown key {name!r}"
            report.error("bad-suppression", what, source.key(*_TABLE, name), hint=_EXAMPLE)
    for pattern, where, codes in lists:
        if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
            report.error("bad-suppression", "not a list of codes", source.value(*where), hint=_EXAMPLE)
            continue
        for index, code in enumerate(codes):
            span = source.value(*where, index)
            if code in explanations() and code not in _FOR_GOOD:
                yield Suppression(pattern=pattern, code=code, span=span)
            else:
                what = f"{code!r} cannot be left out" if code in _FOR_GOOD else f"{code!r} is no code"
                report.warning("unknown-ignore", what, span, hint="`kbuild explain` lists the codes")
