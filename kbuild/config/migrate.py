"""Rewriting an old `build.toml` to the current edition by edits in place: untouched lines stay as they are.

Each step takes a valid file of edition N to edition N + 1. What a step cannot express it refuses; it never
guesses.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbuild.config.editions import detect
from kbuild.config.kinds import read
from kbuild.config.model import CURRENT_EDITION
from kbuild.config.old_editions import OLD_EDITIONS
from kbuild.config.schema import FRAMEWORKS, read_config
from kbuild.config.source import Path, Source
from kbuild.diagnostics import Report, Span
from kbuild.errors import FindingsError

# What `universal = true` stood for: every backend there was.
_UNIVERSAL = ("cann", "cpu", "cuda", "metal", "neuron", "rocm", "xpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The new text, the edition the old one had, and what each step did."""

    text: str
    edition: int
    steps: tuple[str, ...]


class _RefusedError(Exception):
    def __init__(self, message: str, span: Span, hint: str) -> None:
        super().__init__(message)
        self.message, self.span, self.hint = message, span, hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the author says that the file does not."""

    license: str | None = None


def migrate(source: Source, answers: Answers) -> Migration:
    """Take the text to the current edition.

    Raises FindingsError where the file is not valid in its own edition, or has what cannot be carried over.
    """
    detected = detect(source)
    _require_valid(source, detected.edition)
    steps: list[str] = []
    text = source.text
    for edition in range(detected.edition, CURRENT_EDITION):
        editor = _Editor(_reparse(source.path, text))
        try:
            _STEPS[edition](editor, answers)
        except _RefusedError as error:
            raise FindingsError(
                f"{error.span}: cannot take edition {edition} to {edition + 1}: {error.message}",
                hint=error.hint,
            ) from None
        text = editor.result()
        steps += [f"{edition} to {edition + 1}: {note}" for note in editor.notes]
    report = Report()
    read_config(_reparse(source.path, text), report)
    if not report.ok:
        raise FindingsError(
            f"{source.path} cannot be taken to edition {CURRENT_EDITION}: the result would have errors\n"
            + report.as_text(),
            hint="nothing was written; mend these first",
        )
    return Migration(text=text, edition=detected.edition, steps=tuple(steps))


def _reparse(path: str, text: str) -> Source:
    source = Source.parse(path, text, Report())
    if source is None:
        raise AssertionError(f"a migration step wrote invalid TOML:\n{text}")
    return source


def _require_valid(source: Source, edition: int) -> None:
    report = Report()
    if edition in OLD_EDITIONS:
        read(OLD_EDITIONS[edition], source.data, (), source, report)
    elif edition != CURRENT_EDITION:
        span = source.key("general", "edition")
        report.error("unknown-edition", f"edition {edition} is not known here", span)
    if not report.ok:
        raise FindingsError(
            f"{source.path} is not valid in its own edition, {edition}:\n{report.as_text()}",
            hint="mend these first, then migrate",
        )


class _Editor:
    """Collects edits on one text, addressed by key paths, and applies them all at once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.data: dict[str, Any] = source.data
        self.notes: list[str] = []
        self._edits: list[tuple[int, int, str]] = []
        self._newline = "\r\n" if "\r\n" in self.text else "\n"

    def table(self, *path: str) -> dict[str, Any]:
        value: Any = self.data
        for name in path:
            value = value.get(name, {})
        return value if isinstance(value, dict) else {}

    def refuse(self, message: str, path: Path, hint: str) -> _RefusedError:
        return _RefusedError(message, self.source.key(*path), hint)

    def rename_key(self, path: Path, name: str) -> None:
        self._line_start(path)
        self._edits.append((*self.source.keys[path], name))

    def set_value(self, path: Path, text: str) -> None:
        self._edits.append((*self.source.values[path], text))

    def delete(self, path: Path) -> None:
        """Take a whole `key = value` out; a comment behind it stays, on the line of its own."""
        start, end = self._line_start(path), self.source.values[path][1]
        line_end = self._line_end(end)
        behind = self.text[end:line_end]
        if behind.strip():
            self._edits.append((start, line_end - len(behind.lstrip()), ""))
        else:
            after = self.text.find("\n", line_end)
            self._edits.append((start, len(self.text) if after < 0 else after + 1, ""))

    def insert_after(self, path: Path, *lines: str) -> None:
        """Add `key = value` lines below that of `path`, in the same table and with the same indentation."""
        start = self._line_start(path)
        prefix = self.text[start : self.source.keys[path][0]]
        self._insert(self._line_end(self.source.values[path][1]), [prefix + line for line in lines])

    def insert_into(self, path: Path, *lines: str) -> None:
        """Add lines right below the header of a table."""
        self._insert(self._line_end(self._header(path)[1]), list(lines))

    def rename_table(self, path: Path, old: str, new: str) -> None:
        """Change the last name in a table's header."""
        start, end = self._header(path)
        at = self.text.rindex(old, start, end)
        self._edits.append((at, at + len(old), new))

    def append_table(self, *lines: str) -> None:
        at = len(self.text.rstrip())
        self._edits.append((at, at, self._newline * 2 + self._newline.join(lines)))
        if at == len(self.text):
            self._edits.append((at, at, self._newline))

    def section(self, path: Path) -> tuple[int, int]:
        """From the header of a table to the end of the line of its last value."""
        start, end = self._header(path)
        ends = [span[1] for key, span in self.source.values.items() if key[: len(path)] == path]
        return start, self._line_end(max([end, *ends]))

    def insert_text(self, at: int, text: str) -> None:
        self._edits.append((at, at, text.replace("\n", self._newline)))

    def result(self) -> str:
        text = self.text
        # Later places first, so that earlier offsets hold; at one place, the last insertion first.
        order = sorted(
            range(len(self._edits)), key=lambda index: (self._edits[index][0], index), reverse=True
        )
        for start, end, new in (self._edits[index] for index in order):
            text = text[:start] + new + text[end:]
        return text

    def _insert(self, at: int, lines: list[str]) -> None:
        self._edits.append((at, at, "".join(self._newline + line for line in lines)))

    def _line_start(self, path: Path) -> int:
        start = self.source.keys[path][0]
        line = self.text.rfind("\n", 0, start) + 1
        if re.fullmatch(r"[^{}\[\],=#]*", self.text[line:start]) is None:
            raise self.refuse(
                f"{'.'.join(map(str, path))} is written in an inline table",
                path,
                "write the table with a [header] of its own first",
            )
        return line

    def _line_end(self, at: int) -> int:
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        return end - 1 if self.text.endswith("\r", 0, end) and end > at else end

    def _header(self, path: Path) -> tuple[int, int]:
        span = self.source.values.get(path)
        if span is None or self.text[span[0]] != "[":
            raise self.refuse(
                f"{'.'.join(map(str, path))} has no [header] of its own",
                path,
                f"write it as a table: [{'.'.join(map(str, path))}]",
            )
        return span


def _step_1(editor: _Editor, _: Answers) -> None:
    """`torch.universal` moves to general; `language` becomes `backend`, and cuda-hipify two sections."""
    _require_torch(editor)
    if "universal" in editor.table("torch"):
        if editor.table("torch")["universal"]:
            editor.insert_after(("general", "name"), "universal = true")
        editor.delete(("torch", "universal"))
        editor.notes.append("torch.universal moved to general")
    kernels = editor.table("kernel")
    for name, kernel in kernels.items():
        path: Path = ("kernel", name)
        language = kernel.get("language", "cuda")
        extra = [key for key in ("cuda-capabilities", "rocm-archs") if key in kernel]
        if language == "metal" and extra:
            raise editor.refuse(
                f"kernel {name!r} is for metal and has {extra[0]}", (*path, extra[0]), f"remove {extra[0]}"
            )
        if language == "cuda-hipify":
            _add_rocm_twin(editor, name, kernels)
        if "rocm-archs" in kernel:
            editor.delete((*path, "rocm-archs"))
        backend = "metal" if language == "metal" else "cuda"
        if "language" in kernel:
            editor.rename_key((*path, "language"), "backend")
            editor.set_value((*path, "language"), f'"{backend}"')
        else:
            editor.insert_into(path, f'backend = "{backend}"')
        editor.notes.append(f'kernel.{name}.backend = "{backend}"')


def _add_rocm_twin(editor: _Editor, name: str, kernels: dict[str, Any]) -> None:
    twin = f"{name}_rocm"
    path: Path = ("kernel", name)
    if twin in kernels:
        raise editor.refuse(
            f"kernel {name!r} is for cuda-hipify, and its ROCm half would be named {twin!r}, which exists",
            path,
            "rename one of the two sections",
        )
    start, end = editor.section(path)
    part = _Editor(_reparse(editor.source.path, editor.text[start:end]))
    part.set_value(path, f"[kernel.{_key(twin)}]")
    part.rename_key((*path, "language"), "backend")
    part.set_value((*path, "language"), '"rocm"')
    if "cuda-capabilities" in kernels[name]:
        part.delete((*path, "cuda-capabilities"))
    editor.insert_text(end, "\n\n" + part.result().rstrip().replace("\r\n", "\n"))
    editor.notes.append(f"kernel.{twin} added for the ROCm half of {name}")


def _step_2(editor: _Editor, _: Answers) -> None:
    """`universal` and the kernels' backends become general.backends; CUDA settings move to general.cuda."""
    _require_torch(editor)
    general, kernels = editor.table("general"), editor.table("kernel")
    universal = general.get("universal", False)
    if universal:
        torch = editor.table("torch")
        compiled = next((key for key in ("src", "include", "minver", "maxver") if torch.get(key)), None)
        if kernels or compiled:
            raise editor.refuse(
                "it is universal, which means Python only, and has what only compiled kernels have",
                ("torch", compiled) if compiled else ("kernel", next(iter(kernels))),
                "remove universal, or what is compiled",
            )
        for key in ("src", "include"):
            if key in torch:
                editor.delete(("torch", key))
        editor.rename_table(("torch",), "torch", "torch-noarch")
        editor.notes.append("[torch] of a universal kernel became [torch-noarch]")
    backends = _UNIVERSAL if universal else sorted({kernel["backend"] for kernel in kernels.values()})
    if not backends:
        raise editor.refuse(
            "it has no kernel that would say what to build for", ("general",), "add general.backends by hand"
        )
    editor.insert_after(("general", "name"), f"backends = {json.dumps(backends)}")
    editor.notes.append(f"general.backends = {json.dumps(backends)}")
    if "universal" in general:
        editor.delete(("general", "universal"))
    for old, new in (("cuda-minver", "cuda.minver"), ("cuda-maxver", "cuda.maxver")):
        if old in general:
            editor.rename_key(("general", old), new)
            editor.notes.append(f"general.{old} became general.{new}")
    _move_cutlass(editor, general.get("python-depends", []))


def _move_cutlass(editor: _Editor, depends: list[str]) -> None:
    """CUTLASS's Python package is a dependency of the cuda backend since edition 3."""
    dsl = "nvidia-cutlass-dsl"
    if dsl not in depends:
        return
    path: Path = ("general", "python-depends")
    others = [name for name in depends if name != dsl]
    if not others:
        editor.rename_key(path, "cuda.python-depends")
    else:
        if "#" in editor.text[slice(*editor.source.values[path])]:
            raise editor.refuse(
                f"{dsl} must move to general.cuda, and its list has comments", path, "move it by hand"
            )
        editor.set_value(path, json.dumps(others))
        editor.insert_after(path, f'cuda.python-depends = ["{dsl}"]')
    editor.notes.append(f"{dsl} moved to general.cuda.python-depends")


def _step_3(editor: _Editor, answers: Answers) -> None:
    """Version and licence become required, and Python-only kernels say so."""
    general = editor.table("general")
    lines = []
    if "version" not in general:
        # A kernel from before versions counts as its first one.
        lines.append("version = 1")
    if "license" not in general:
        if answers.license is None:
            raise editor.refuse(
                "it has no general.license, which only you can say",
                ("general",),
                "kbuild migrate --license apache-2.0 (or another Hub licence identifier)",
            )
        lines.append(f"license = {json.dumps(answers.license)}")
    if lines:
        editor.insert_after(("general", "version" if "version" in general else "name"), *lines)
        editor.notes += [f"general.{line}" for line in lines]
    if not any(name in editor.data for name in FRAMEWORKS):
        if editor.table("kernel"):
            raise editor.refuse(
                "it has kernels to compile and no [torch]",
                ("kernel", next(iter(editor.table("kernel")))),
                "add [torch] with the bindings in src",
            )
        editor.append_table("[torch-noarch]")
        editor.notes.append("[torch-noarch] added")


def _step_4(editor: _Editor, _: Answers) -> None:
    """The edition's number; and `src` has no default any more."""
    editor.insert_after(("general", "version"), f"edition = {CURRENT_EDITION}")
    editor.notes.append(f"general.edition = {CURRENT_EDITION}")
    if "torch" in editor.data and "src" not in editor.table("torch"):
        editor.insert_into(("torch",), "src = []")
        editor.notes.append("torch.src = []")


def _require_torch(editor: _Editor) -> None:
    if "torch" not in editor.data:
        raise editor.refuse("it has no [torch], which this edition requires", ("general",), "add [torch]")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


_STEPS: dict[int, Callable[[_Editor, Answers], None]] = {1: _step_1, 2: _step_2, 3: _step_3, 4: _step_4}
