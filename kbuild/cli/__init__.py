"""The `kbuild` command: a lazy table of commands and the one error boundary.

Each command lives in a module of this package and is imported only when it is run, so `kbuild --help` is instant.
"""

import importlib
import sys
from typing import Any, NoReturn

import click

from kbuild import __version__
from kbuild.errors import ExitCode, KbuildError

# command -> (module attribute, help line); commands appear in this order in --help.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("kbuild.cli.init:init", "Start a kernel project that builds and tests as it stands."),
    "check": ("kbuild.cli.check:check", "Validate build.toml, layout and sources."),
    "variants": ("kbuild.cli.variants:variants", "List what would be built, and why the rest would not."),
    "build": ("kbuild.cli.build:build", "Build variants with Nix, verify them, copy them to build/."),
    "test": ("kbuild.cli.test:test", "Run a kernel's tests against its build, loaded as users load it."),
    "bench": ("kbuild.cli.bench:bench", "Time a kernel on this GPU beside copy, PyTorch and its peers."),
    "abi": ("kbuild.cli.abi:abi", "Verify the ABI of a build tree or of a single library."),
    "publish": ("kbuild.cli.publish:publish", "Verify, then upload a build to a Hub repository."),
    "explain": ("kbuild.cli.explain:explain", "Say what a code of check means, and how to mend it."),
    "schema": ("kbuild.cli.schema:schema", "Print the JSON Schema of build.toml, for editors."),
    "skills": ("kbuild.cli.skills:skills", "List the skills for coding agents, or install one."),
    "migrate": ("kbuild.cli.migrate:command", "Rewrite build.toml to the current edition."),
    "lock": ("kbuild.cli.lock:lock", "Refresh or fetch the pinned toolchain."),
    "localhub": ("kbuild.cli.localhub:localhub", "Run a Hub on loopback, for tests and demos."),
    "doctor": ("kbuild.cli.doctor:doctor", "Say what this machine has and lacks, each with the fix."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from kbuild.text import did_you_mean

            raise click.UsageError(error.message + did_you_mean(args[0], COMMANDS), ctx=ctx) from None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kbuild")
def cli() -> None:
    """Build, verify and publish PyTorch kernels."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line; the one place where errors become text and an exit code."""
    try:
        result: Any = cli.main(args=argv, prog_name="kbuild", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("\nInterrupted: nothing half-done was left behind.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KbuildError as error:
        click.echo(f"error: {error.message}", err=True)
        if error.hint is not None:
            click.echo(f"hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # A room that knows better says so in a KbuildError; this is the machine in the way of any of them.
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {place}{error.strerror or error}", err=True)
        sys.exit(ExitCode.ENVIRONMENT)
    # NB: in non-standalone mode click returns the code of ctx.exit(), and commands return None.
    sys.exit(result if isinstance(result, int) else 0)
