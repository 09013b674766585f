"""`kbuild bench`: a kernel's benchmarks on the GPU at hand."""

import json
from pathlib import Path

import click

from kbuild.errors import ExitCode, UsageError


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "-k", "wanted", default="", metavar="TEXT", help="Only operations with TEXT in their name, in any case."
)
@click.option("--variant", metavar="NAME", help="Load this variant of build/, not the one that fits best.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write <name>.json, .md and .svg there.",
)
@click.option(
    "--from",
    "recorded",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="REPORT",
    help="Show a recorded <name>.json again instead of measuring.",
)
@click.option("--check", is_flag=True, help="Only compare with float64, on a CPU too; time nothing.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result.")
@click.pass_context
def bench(
    ctx: click.Context,
    path: Path | None,
    wanted: str,
    variant: str | None,
    output: Path | None,
    recorded: Path | None,
    check: bool,
    as_json: bool,
) -> None:
    """Run the benchmarks of the project at PATH: first against float64, then on the clock.

    Beside a copy of the same bytes, plain PyTorch, torch.compile and what else the benchmarks name. Needs PyTorch,
    kernels 0.17 or later and, but for --check, a GPU. Fails where a result is off by more than rounding to
    the operation's dtype, or has another shape or dtype than it must; of several results, where one does.
    """
    from kbuild import bench as benchmarks

    if check and (output is not None or recorded is not None):
        raise UsageError("--check times nothing, so there is no report to write or to show again")
    if recorded is not None:
        document = benchmarks.load(recorded)
        stem = recorded.stem
    else:
        from kbuild import freshness
        from kbuild.project import Project

        project = Project.open(path)
        general = project.require_config().general
        stem = general.name
        document = benchmarks.run(
            project.root,
            general.name,
            general.hub.repo_id or f"kbuild/{general.name}",
            wanted=wanted,
            variant=variant,
            check=check,
            story=lambda line: click.echo(line, err=True),
        )
        if note := freshness.note(project, document["environment"]["variant"]):
            click.echo(f"note: {note}", err=True)
    report = benchmarks.read(document)
    if as_json:
        click.echo(json.dumps(document, indent=1, ensure_ascii=False))
    elif output is None:
        click.echo((benchmarks.checks if check else benchmarks.markdown)(report), nl=False)
    if output is not None:
        for written in benchmarks.write(report, document, output, stem):
            click.echo(written, err=as_json)
    for result in report.wrong:
        place = f"{result.operation} at {benchmarks.shape_text(result.shape)}"
        click.echo(f"wrong: {place}: {result.wrong}", err=True)
    ctx.exit(ExitCode.FINDINGS if report.wrong else ExitCode.OK)
