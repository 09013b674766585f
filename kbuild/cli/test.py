"""`kbuild test`: a kernel's tests, against its build."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from kbuild.errors import ExitCode


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
    kernels 0.17 or later and pytest in this environment. What follows goes to pytest: kbuild test -k bfloat16
    """
    from kbuild.kernel_tests import repo_ids, run_tests
    from kbuild.project import Project

    named = bool(arguments) and not arguments[0].startswith("-")
    project = Project.open(Path(arguments[0]) if named else None)
    config = project.require_config()
    repos = repo_ids(project.root, config.general.name, repo_id or config.general.hub.repo_id)
    run = run_tests(project.root, repos, variant=variant, arguments=arguments[named:], to_stderr=as_json)
    if as_json:
        click.echo(json.dumps({"version": 1, "project": str(project.root), **asdict(run)}, indent=2))
    elif run.variant is not None:
        verdict = "passed its tests" if run.ok else "FAILED its tests"
        click.echo(f"{config.general.name}: {run.variant} {verdict}", err=True)
    ctx.exit(ExitCode.OK if run.ok else ExitCode.FINDINGS)
