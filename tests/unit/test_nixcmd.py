"""Nix's event stream and its failures, as values."""

import json

import pytest

from kbuild.errors import BuildError, HubError, KbuildError, MachineError
from kbuild.nix_errors import ANSI, explain, never_started
from kbuild.nixcmd import Events, compiler_errors, step_name

DRV = "/nix/store/r3ivyqwc9m3kh320sv11apals3vj1j57-relu.cu.o.drv"


def event(**fields: object) -> str:
    return "@nix " + json.dumps(fields)


def test_events_follow_a_build() -> None:
    logs: list[tuple[str, str]] = []
    changes: list[int] = []
    events = Events(
        on_change=lambda e: changes.append(len(e.building)), on_log=lambda d, t: logs.append((d, t))
    )
    events.feed(event(action="start", id=7, level=3, type=105, fields=[DRV, "", 1, 1], text="building"))
    events.feed(event(action="result", id=7, type=101, fields=["\x1b[31merror\x1b[0m: no"]))
    events.feed(event(action="start", id=8, level=3, type=0, text="something else"))
    events.feed(event(action="stop", id=8))
    events.feed(event(action="stop", id=7))
    assert logs == [(DRV, "error: no")]
    assert events.finished == [DRV]
    assert changes == [1, 0]


def test_events_name_what_failed_once() -> None:
    events = Events()
    for message in (
        f"builder for '\x1b[35m{DRV}\x1b[0m' failed with exit code 1",
        f"building of '{DRV}' failed to build",
    ):
        events.feed(event(action="msg", level=0, msg=message))
    events.feed("a line of another form")
    assert events.failed == [DRV]
    assert events.messages[-1] == "a line of another form"


def test_a_step_is_called_by_its_name() -> None:
    assert step_name(DRV) == "relu.cu.o"


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        ("error: writing to file: No space left on device", MachineError, "disk is full"),
        (
            "error: cannot connect to socket at '/nix/var/nix/daemon-socket/socket'",
            MachineError,
            "cannot write to the",
        ),
        ("warning: ignoring the client-specified setting 'sandbox-paths'", MachineError, "daemon"),
        ("error: executing '/usr/bin/python3.13': No such file or directory", MachineError, "daemon"),
        ("error: unable to download 'x': Couldn't resolve host name (6)", HubError, "download"),
        (
            "error: the group 'nixbld' specified in 'build-users-group' does not exist",
            MachineError,
            "sandbox",
        ),
        ("trace\nerror: undefined variable 'x'\nat flake.nix:3", BuildError, "undefined variable 'x'"),
        (
            "warning: the group 'nixbld' specified in 'build-users-group' does not exist\nerror: syntax error",
            BuildError,
            "syntax error",
        ),
    ],
)
def test_known_troubles_have_a_way_out(output: str, kind: type[KbuildError], words: str) -> None:
    error = explain(output, "it fails")
    assert type(error) is kind
    assert words in error.message
    assert (error.hint is None) == (kind is BuildError)


def test_a_log_of_a_step_that_never_started_is_not_the_compilers() -> None:
    path, reason = "\x1b[35;1m/usr/bin/python3.13\x1b[0m", "\x1b[35;1mNo such file or directory\x1b[0m"
    assert never_started(f"\x1b[31;1merror:\x1b[0m executing '{path}': {reason}\n")
    assert not never_started("a.cpp:1:10: fatal error: x.h: No such file or directory\n")


def test_the_telling_lines_of_a_log() -> None:
    log = "\n".join(
        [*(f"note {n}" for n in range(100)), "a.cu(3): error: expected ;", "  int x", "  ^", "more"]
    )
    assert list(compiler_errors(log)) == ["a.cu(3): error: expected ;", "  int x", "  ^"]
    assert list(compiler_errors("one\ntwo", limit=1)) == ["two"]


def test_the_telling_lines_of_a_coloured_log() -> None:
    """As g++ writes to Nix, which gives it a terminal."""
    error = "\x1b[01m\x1b[Ka.cpp:1:2:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kno matching function"
    log = "\n".join([error, *("\x1b[01;36m\x1b[Knote: \x1b[m\x1b[Kcandidate" for _ in range(50))])
    assert next(iter(compiler_errors(ANSI.sub("", log)))) == "a.cpp:1:2: error: no matching function"
