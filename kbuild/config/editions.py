"""Which edition of the format a `build.toml` is written in, told by the keys it has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from kbuild.config.model import CURRENT_EDITION
from kbuild.config.source import Source
from kbuild.diagnostics import Report, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """The edition, what in the file says so, and where that stands."""

    edition: int
    evidence: str
    span: Span


def detect(source: Source) -> Detected:
    """Told by the stated number where there is one, else by marker keys, newest edition first.

    Only edition 5 states its number; markers of an old edition are keys that no later edition has.
    """
    general = _table(source.data, "general")
    stated = general.get("edition")
    if isinstance(stated, int) and not isinstance(stated, bool):
        return Detected(
            edition=stated, evidence=f"general.edition is {stated}", span=source.value("general", "edition")
        )
    if "edition" in general:
        return Detected(
            edition=CURRENT_EDITION, evidence="it has general.edition", span=source.key("general", "edition")
        )
    misspelled = next((key for key in general if get_close_matches(key, ["edition"], cutoff=0.8)), None)
    if misspelled is not None:
        return _found(CURRENT_EDITION, source, "general", misspelled)
    for markers in (_edition_1(source), _edition_2(source), _edition_5(source), _edition_4(source)):
        for detected in markers:
            return detected
    return Detected(
        edition=3,
        evidence="it has general.backends, and no key that a later edition brought",
        span=source.key("general", "backends"),
    )


def _edition_1(source: Source) -> Iterator[Detected]:
    if "universal" in _table(source.data, "torch"):
        yield _found(1, source, "torch", "universal")
    for name, kernel in _table(source.data, "kernel").items():
        if isinstance(kernel, dict) and "language" in kernel:
            yield _found(1, source, "kernel", name, "language")


def _edition_2(source: Source) -> Iterator[Detected]:
    general = _table(source.data, "general")
    for key in ("universal", "cuda-minver", "cuda-maxver"):
        if key in general:
            yield _found(2, source, "general", key)
    if "backends" in general or _later_framework(source) or not general:
        return
    kernels = _table(source.data, "kernel")
    if any(isinstance(kernel, dict) and "backend" not in kernel for kernel in kernels.values()):
        yield Detected(
            edition=1, evidence="its kernels name no backend", span=source.key("kernel", next(iter(kernels)))
        )
    elif "license" not in general and "version" not in general:
        yield Detected(edition=2, evidence="it has no general.backends", span=source.key("general"))


def _edition_5(source: Source) -> Iterator[Detected]:
    general = _table(source.data, "general")
    if not general:
        yield Detected(edition=CURRENT_EDITION, evidence="it has no [general]", span=source.key("general"))
    for key in ("kernel-depends", "tpu"):
        if key in general:
            yield _found(5, source, "general", key)
    for name in ("cuda", "neuron", "xpu"):
        if "kernel-depends" in _table(general, name):
            yield _found(5, source, "general", name, "kernel-depends")
    if isinstance(_table(source.data, "torch").get("stable-abi"), dict):
        yield _found(5, source, "torch", "stable-abi")


def _edition_4(source: Source) -> Iterator[Detected]:
    for path in (
        ("torch-noarch",),
        ("general", "source"),
        ("torch", "stable-abi"),
        ("torch", "cxx-flags"),
        ("tvm-ffi", "cxx-flags"),
    ):
        table = _table(source.data, path[0]) if len(path) > 1 else source.data
        if path[-1] in table:
            yield _found(4, source, *path)
    general = _table(source.data, "general")
    framework = next((name for name in ("torch", "tvm-ffi") if name in source.data), None)
    if "version" in general and "license" in general and framework is not None:
        yield Detected(
            edition=4,
            evidence=f"it has general.version, general.license and [{framework}], and no general.edition",
            span=source.key("general"),
        )


def _later_framework(source: Source) -> bool:
    return "torch-noarch" in source.data or "tvm-ffi" in source.data


def _found(edition: int, source: Source, *path: str) -> Detected:
    return Detected(edition=edition, evidence=f"it has {'.'.join(path)}", span=source.key(*path))


def _table(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


# What an author writes to get from an edition to the next one.
_STEPS = {
    1: "write backend in every [kernel.*] in place of language (cuda-hipify means two: cuda and rocm)",
    2: "list general.backends; move general.cuda-minver and -maxver to [general.cuda]",
    3: "add general.version and general.license; write [torch-noarch] where there is no framework table",
    4: f"add edition = {CURRENT_EDITION} to [general]",
}


def report_old_edition(detected: Detected, report: Report) -> None:
    """One finding for a file of another edition, with the way to the current one.

    Edition 4 is only a warning: it means the same as edition 5 and lacks its number, and builders take it.
    """
    if detected.edition > CURRENT_EDITION or detected.edition < 1:
        report.error(
            "unknown-edition",
            f"edition {detected.edition} is not known here; the newest is {CURRENT_EDITION}",
            detected.span,
            hint=f"set edition = {CURRENT_EDITION}, or use a newer kbuild",
        )
        return
    steps = "; ".join(text for number, text in _STEPS.items() if number >= detected.edition)
    add = report.warning if detected.edition == CURRENT_EDITION - 1 else report.error
    add(
        "old-edition",
        f"this build.toml is written in edition {detected.edition} ({detected.evidence}); "
        f"the current edition is {CURRENT_EDITION}",
        detected.span,
        hint=f"run `kbuild migrate`, or by hand: {steps}",
    )
