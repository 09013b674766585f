"""The text of a TOML file together with the place of every key and value in it.

`tomllib` reads the values but tells no positions, so a scanner walks the same text once more. It relies on
the text being valid: `tomllib` has accepted it before.
"""

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from kbuild.diagnostics import Report, Span

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^\s,\]}#]+(?: \d\d:[^\s,\]}#]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A parsed file: `data` as `tomllib` gives it, and where each key and value stands.

    `path` is what diagnostics print. Array elements are addressed by index: `("torch", "src", 0)`.
    """

    path: str
    text: str
    data: dict[str, Any]
    keys: dict[Path, tuple[int, int]]
    values: dict[Path, tuple[int, int]]
    line_starts: tuple[int, ...]

    @classmethod
    def parse(cls, path: str, text: str, report: Report) -> "Source | None":
        """None, with one diagnostic in `report`, where the text is not TOML."""
        # NB: tomllib reads "\r\n" as "\n"; positions are counted in the text as it is on disk.
        scanner = _Scanner(text)
        try:
            data = tomllib.loads(text)
            scanner.document()
        except tomllib.TOMLDecodeError as error:
            message, line, column = _split_position(str(error), text)
            report.error(
                "toml-syntax", f"not valid TOML: {message}", Span(path=path, line=line, column=column)
            )
            return None
        except RecursionError:
            report.error("toml-syntax", "arrays or tables are nested too deeply to be read", Span(path=path))
            return None
        except ValueError as error:  # a number of thousands of digits
            report.error("toml-syntax", f"a value cannot be read: {error}", Span(path=path))
            return None
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        return cls(
            path=path,
            text=text,
            data=data,
            keys=scanner.keys,
            values=scanner.values,
            line_starts=tuple(starts),
        )

    def key(self, *path: str | int) -> Span:
        """Where the key stands; for an array element or an unknown key, its nearest known parent."""
        return self._span(self.keys, path)

    def value(self, *path: str | int) -> Span:
        """Where the value stands; falls back to the nearest known parent."""
        return self._span(self.values, path)

    def line(self, number: int) -> str:
        """One line of the text, counted from 1, without its end."""
        start = self.line_starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")

    def _span(self, table: dict[Path, tuple[int, int]], path: Path) -> Span:
        for end in range(len(path), 0, -1):
            found = (table if end == len(path) else self.keys).get(path[:end]) or self.values.get(path[:end])
            if found is not None:
                return self._at(*found)
        return Span(path=self.path)

    def _at(self, start: int, end: int) -> Span:
        line = bisect_right(self.line_starts, start)
        line_start = self.line_starts[line - 1]
        line_end = self.line_starts[line] - 1 if line < len(self.line_starts) else len(self.text)
        return Span(
            path=self.path,
            line=line,
            column=start - line_start + 1,
            length=max(1, min(end, line_end) - start),
        )


def _split_position(message: str, text: str) -> tuple[str, int, int]:
    match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    if match is not None:
        return match[1], int(match[2]), int(match[3])
    lines = text.split("\n")
    return message.removesuffix(" (at end of document)"), len(lines), len(lines[-1]) + 1


class _Scanner:
    """Walks valid TOML and notes the offsets of keys and values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.keys: dict[Path, tuple[int, int]] = {}
        self.values: dict[Path, tuple[int, int]] = {}
        self._array_tables: dict[Path, int] = {}

    def document(self) -> None:
        prefix: Path = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip(_BLANK)

    def _header(self) -> Path:
        start = self.at
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        names = self._dotted_key()
        path: Path = ()
        for position, (name, span) in enumerate(names):
            path = (*path, name)
            self.keys.setdefault(path, span)
            if is_array and position == len(names) - 1:
                self._array_tables[path] = self._array_tables.get(path, -1) + 1
            if path in self._array_tables:
                path = (*path, self._array_tables[path])
        self._skip(_SPACE)
        self.at += 2 if is_array else 1
        # NB: the header of the table itself wins over an earlier mention as a parent of a subtable.
        self.values[path] = (start, self.at)
        self.keys[path] = (start, self.at)
        return path

    def _pair(self, prefix: Path) -> None:
        path = prefix
        for name, span in self._dotted_key():
            path = (*path, name)
            self.keys.setdefault(path, span)
        self._skip(_SPACE)
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _dotted_key(self) -> list[tuple[str, tuple[int, int]]]:
        names = []
        while True:
            self._skip(_SPACE)
            start = self.at
            if self.text[self.at] in "\"'":
                self._skip(_STRING)
                # The key's own text is a TOML string: let the real parser undo its escapes.
                name = tomllib.loads("x=" + self.text[start : self.at])["x"]
            else:
                self._skip(_BARE_KEY)
                name = self.text[start : self.at]
            names.append((name, (start, self.at)))
            self._skip(_SPACE)
            if self.text[self.at] != ".":
                return names
            self.at += 1

    def _value(self, path: Path) -> None:
        start = self.at
        match self.text[self.at]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._skip(_STRING)
            case _:
                self._skip(_SCALAR)
        self.values[path] = (start, self.at)

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        self._skip(_BLANK)
        while self.text[self.at] != "]":
            self._value((*path, index))
            index += 1
            self._skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self._skip(_BLANK)
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        self._skip(_BLANK)
        while self.text[self.at] != "}":
            self._pair(path)
            self._skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self._skip(_BLANK)
        self.at += 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
