"""The errors kbuild gives up with, and the exit codes that scripts rely on."""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process exits with; part of the command-line contract."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    BUILD = 4
    HUB = 5


class KbuildError(Exception):
    """We cannot go on. `message` says what is wrong and where; `hint` is the way out, fit to be pasted.

    Raise one of the subclasses: the class decides the exit code.
    """

    exit_code: ClassVar[ExitCode]

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class FindingsError(KbuildError):
    """The user's files or artifacts are wrong; the findings were printed already or are in the message."""

    exit_code = ExitCode.FINDINGS


class UsageError(KbuildError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = ExitCode.USAGE


class MachineError(KbuildError):
    """This machine lacks something: Nix, a compiler, disk space, a usable store."""

    exit_code = ExitCode.ENVIRONMENT


class BuildError(KbuildError):
    """A variant did not build."""

    exit_code = ExitCode.BUILD


class HubError(KbuildError):
    """The Hub, a package index or the network refused or failed."""

    exit_code = ExitCode.HUB
