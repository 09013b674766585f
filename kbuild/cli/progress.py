"""What a person sees while Nix builds: a live line per variant on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from kbuild.nixcmd import Events, step_name
from kbuild.text import plural

if TYPE_CHECKING:
    from rich.table import Table


class BuildProgress:
    """Follows Nix's events. `todo` names, for each variant, the derivations that this run has to build, `results`
    the store path that is there when it is built: Nix reports the end of a build only when all is over.
    """

    def __init__(
        self, todo: Mapping[str, frozenset[str]], results: Mapping[str, Path], *, show_logs: bool
    ) -> None:
        self._todo = {variant: drvs for variant, drvs in todo.items() if drvs}
        self._results = results
        self._show_logs = show_logs
        self._start = time.monotonic()
        self._done: set[str] = set()
        self._announced: set[str] = set()
        self._live = None
        if sys.stderr.isatty() and not show_logs:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        steps = len(frozenset().union(*self._todo.values()))
        click.echo(f"building {plural(len(self._todo), 'variant')} in {plural(steps, 'step')}", err=True)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, events: Events) -> None:
        """Called after each event."""
        failed = set(events.failed)
        started = {*events.building.values(), *events.finished}
        if self._live is not None:
            self._live.update(self._table(events, started, failed))
        for drv in started - self._announced if self._live is None else ():
            self._announced.add(drv)
            self._say(f"  {step_name(drv)}{self._users(drv)}")
        for variant in self._todo:
            if variant not in self._done and self._results[variant].exists():
                self._done.add(variant)
                elapsed = time.monotonic() - self._start
                self._say(f"[{len(self._done)}/{len(self._todo)}] {variant} built ({elapsed:.1f} s)")

    def log(self, drv: str, line: str) -> None:
        """One line of a builder's output."""
        if self._show_logs:
            click.echo(f"{step_name(drv)}> {line}", err=True)

    def _say(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, highlight=False)
        else:
            click.echo(line, err=True)

    def _users(self, drv: str) -> str:
        users = [variant for variant, drvs in self._todo.items() if drv in drvs]
        return f" for {len(users)} variants" if len(users) > 1 else f" for {users[0]}" if users else ""

    def _table(self, events: Events, started: set[str], failed: set[str]) -> "Table":
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        building = list(events.building.values())
        for variant, drvs in self._todo.items():
            if variant in self._done:
                continue
            now = [step_name(drv) for drv in building if drv in drvs]
            state = "[red]failed[/]" if drvs & failed else ", ".join(now) or "waiting"
            table.add_row(variant, f"{len(drvs & started)}/{len(drvs)}", state)
        return table
