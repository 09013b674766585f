"""`kbuild test`: a kernel's tests, against its build."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import click

from kbuild.errors import ExitCode, UsageError
from kbuild.text import plural

if TYPE_CHECKING:
    from kbuild.kernel_tests import TestRun


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PATH] [PYTEST OPTIONS]...")
@click.option("--variant", metavar="NAME", help="Load this variant of build/, not the one that fits best.")
@click.option("--repo-id", metavar="ORG/NAME", help="What the tests load, if not general.hub.repo-id.")
@click.option(
    "--json", "as_json", is_flag=True, help="Machine-readable result; pytest's output goes to stderr."
)
@click.pass_context
def test(
    ctx: click.Context,
    arguments: tuple[str, ...],
    variant: str | None,
    repo_id: str | None,
    as_json: bool,
) -> None:
    """Run the tests of the project at PATH with its built kernel in the place of the published one.

    The kernel is loaded as its users load it, by `get_kernel("ORG/NAME")` of the kernels library. Needs PyTorch,
    kernels 0.17 or later and pytest in this environment. What follows goes to pytest, which runs in the project's
    folder: kbuild test -k bfloat16
    """
    from kbuild import freshness
    from kbuild.config.schema import REPO_ID, REPO_ID_RULE
    from kbuild.kernel_tests import repo_ids, run_tests
    from kbuild.project import Project

    if repo_id is not None and re.search(REPO_ID.pattern or "", repo_id) is None:
        raise UsageError(
            f"{repo_id!r} names no repository", hint=f"--repo-id ORG/NAME, in each {REPO_ID_RULE}"
        )
    named = bool(arguments) and not arguments[0].startswith("-")
    project = Project.open(Path(arguments[0]) if named else None)
    config = project.require_config()
    repos = repo_ids(project.root, config.general.name, repo_id or config.general.hub.repo_id)
    run = run_tests(
        project.root,
        config.general.name,
        repos,
        variant=variant,
        arguments=arguments[named:],
        to_stderr=as_json,
    )
    stale = freshness.note(project, run.variant)
    notes = [*run.notes, *([stale] if stale else [])]
    if as_json:
        document = {"version": 1, "project": str(project.root), **asdict(run), "notes": notes}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(_verdict(config.general.name, run), err=True)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    ctx.exit(ExitCode.FINDINGS if run.ok is False else ExitCode.OK)


def _verdict(name: str, run: "TestRun") -> str:
    subject = name if run.variant is None else f"{name}: {run.variant}"
    match run.ok:
        case True:
            return f"{subject} passed its tests"
        case False:
            return f"{subject} FAILED its tests"
        case None if run.skipped:
            return f"{subject} was not tested: {plural(run.skipped, 'test')} skipped"
        case None:
            return f"{subject} was not tested: no test ran"
        case _:
            assert_never(run.ok)
