"""`kbuild migrate`: rewrite build.toml to the current edition."""

import difflib
import json
from pathlib import Path

import click

from kbuild.cli.writing import replace_text
from kbuild.config.migrate import Answers, Migration, migrate
from kbuild.config.model import CURRENT_EDITION
from kbuild.errors import ExitCode
from kbuild.project import find_root, read_source
from kbuild.sources.files import CONFIG_NAME


@click.command(name="migrate")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--diff", "show_diff", is_flag=True, help="Print the change as a diff; write nothing.")
@click.option(
    "--check", "only_check", is_flag=True, help="Exit 1 where the file is not current; write nothing."
)
@click.option(
    "--license", "license_id", help="The Hub licence identifier, for files from before it was required."
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def command(
    ctx: click.Context,
    path: Path | None,
    show_diff: bool,
    only_check: bool,
    license_id: str | None,
    as_json: bool,
) -> None:
    """Rewrite the build.toml of the project at PATH to the current edition.

    Comments, order and untouched lines stay as they are. What cannot be carried over is refused, with the reason.
    """
    source = read_source(find_root(path))
    result = migrate(source, Answers(license=license_id))
    changed = result.text != source.text
    if as_json:
        answer = {"version": 1, "edition": result.edition, "changed": changed, "steps": list(result.steps)}
        click.echo(json.dumps(answer, indent=2))
    elif show_diff:
        click.echo(_diff(source.text, result), nl=False)
    if changed and not show_diff and not only_check:
        replace_text(find_root(path) / CONFIG_NAME, result.text)
    click.echo(_story(result, changed, wrote=not show_diff and not only_check), err=True)
    ctx.exit(ExitCode.FINDINGS if only_check and changed else ExitCode.OK)


def _story(result: Migration, changed: bool, *, wrote: bool) -> str:
    if not changed:
        return f"{CONFIG_NAME} is of edition {CURRENT_EDITION} already"
    head = f"{CONFIG_NAME}: {'took' if wrote else 'would take'} edition {result.edition} to {CURRENT_EDITION}"
    return "\n".join([head, *(f"  {step}" for step in result.steps)])


def _diff(before: str, result: Migration) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        result.text.splitlines(keepends=True),
        f"{CONFIG_NAME} (edition {result.edition})",
        f"{CONFIG_NAME} (edition {CURRENT_EDITION})",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
