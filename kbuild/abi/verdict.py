"""What a verdict is made of: what an artifact is meant to be, the rules, and what they found."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbuild.abi.elf import ElfFile
from kbuild.abi.policies import PYTHON_FLOOR, TorchRelease
from kbuild.config.model import Capability
from kbuild.variants import Compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """The artifact is wrong. `code` is a stable kebab-case name, `path` is relative to what was verified."""

    code: str
    message: str
    path: str
    symbol: str | None = None
    needed: str | None = None
    allowed: str | None = None
    hint: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "path": self.path,
            "symbol": self.symbol,
            "needed": self.needed,
            "allowed": self.allowed,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StableAbi:
    """A build for every PyTorch from a floor on: `releases` are those with known symbols, the floor first."""

    releases: tuple[TorchRelease, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a library is meant to be; None where that is not known, and then `no_torch` says why.

    `path` is how the file is called in violations, `archs` are the declared capabilities as in metadata.json,
    `cxx11` is None where no `std::string` may cross the border anyway.
    """

    path: str
    machine: str | None = None
    compute: Compute | None = None
    torch: TorchRelease | StableAbi | None = None
    no_torch: str = "the PyTorch release is not known"
    cxx11: bool | None = None
    archs: tuple[Capability, ...] | None = None
    python_floor: str = PYTHON_FLOOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One verdict over a library: what is wrong, what was found, why it cannot be reached (None: it can)."""

    code: str
    title: str
    check: Callable[[ElfFile, Context], list[Violation]]
    found: Callable[[ElfFile, Context], str]
    missing: Callable[[Context], str | None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one rule said about one file (or, with `path` ".", about the folder)."""

    code: str
    title: str
    path: str
    found: str
    violations: tuple[Violation, ...] = ()
    skipped: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "title": self.title,
            "path": self.path,
            "found": self.found,
            "ok": None if self.skipped is not None else not self.violations,
            "skipped": self.skipped,
            "violations": [violation.as_json() for violation in self.violations],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything that was found about one variant, or about one library alone.

    `unverified` says why a build against PyTorch could not be held against it, for want of knowledge.
    """

    subject: Path
    results: tuple[Result, ...]
    unverified: tuple[str, ...] = ()

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(violation for result in self.results for violation in result.violations)

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were judged, in order, without the folder itself."""
        return tuple(dict.fromkeys(result.path for result in self.results if result.path != "."))

    def as_json(self) -> dict[str, Any]:
        return {
            "subject": str(self.subject),
            "ok": self.ok,
            "results": [result.as_json() for result in self.results],
        }
