"""What a person sees while the toolchain is fetched: a bar on a terminal, plain lines elsewhere, on stderr."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID


class TransferProgress:
    """A progress for `kbuild.toolchain.ensure`; use it as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = self._done = self._said = 0
        self._bar = _new_bar() if sys.stderr.isatty() else None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        """One line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            click.echo(text, err=True)

    def begin(self, what: str, total: int) -> None:
        """`total` bytes are to come."""
        self._total = total
        if self._bar is not None:
            self._task = self._bar.add_task(what, total=total)
        else:
            click.echo(f"{what}: {total / 1e6:.0f} MB to fetch", err=True)

    def advance(self, amount: int) -> None:
        """`amount` bytes came; before `begin`, and from any thread, that is no news."""
        if not self._total:
            return
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, amount)
            return
        with self._lock:
            self._done += amount
            quarter = 4 * self._done // self._total
            news = quarter > self._said
            self._said = max(self._said, quarter)
        if news and quarter <= 4:
            click.echo(f"  {min(self._done, self._total) / 1e6:.0f} of {self._total / 1e6:.0f} MB", err=True)


def _new_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
