"""`kbuild check`: validate build.toml, layout and sources."""

from pathlib import Path

import click

from kbuild import __version__
from kbuild.cli.writing import replace_text
from kbuild.config.edits import apply_edits
from kbuild.diagnostics import Report, Severity
from kbuild.errors import ExitCode
from kbuild.project import Project
from kbuild.renderers import Format, render
from kbuild.text import plural


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in Format]),
    default=Format.TEXT.value,
    show_default=True,
    help="Output format.",
)
@click.option("--json", "form", flag_value=Format.JSON.value, help="The same as --format json.")
@click.option("--fix", is_flag=True, help="Mend in build.toml what is safe to mend without asking.")
@click.pass_context
def check(ctx: click.Context, path: Path | None, strict: bool, form: str, fix: bool) -> None:
    """Validate build.toml, layout and sources of the project at PATH.

    PATH is the project folder or its build.toml; without it the current folder and its parents are searched.
    Exits 1 where there are errors. Needs no Nix, no PyTorch and no network. `kbuild explain CODE` says more about a
    finding.
    """
    project = Project.open(path)
    if fix:
        project = _mended(project)
    report = project.report
    text = render(report, Format(form), root=project.root, rules=_rules(report, form), version=__version__)
    if text:
        click.echo(text)
    click.echo(_summary(project, report), err=True)
    failing = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    failed = any(diagnostic.severity in failing for diagnostic in report)
    ctx.exit(ExitCode.FINDINGS if failed else ExitCode.OK)


def _mended(project: Project) -> Project:
    """Apply every safe fix, as often as mending one thing shows the next; the project as it is then."""
    for _ in range(10):
        edits = tuple(edit for diagnostic in project.report for edit in diagnostic.fix)
        if not edits or project.source is None:
            break
        text = apply_edits(project.source.text, edits)
        replace_text(project.root / project.source.path, text)
        click.echo(f"mended {project.source.path} in {len(set(edits))} places", err=True)
        project = Project.open(project.root)
    return project


def _rules(report: Report, form: str) -> dict[str, str]:
    if form != Format.SARIF or not len(report):
        return {}
    from kbuild.explain import explanations

    return {code: entry.what for code, entry in explanations().items()}


def _summary(project: Project, report: Report) -> str:
    counts = [
        plural(sum(d.severity is severity for d in report), severity.value)
        for severity in (Severity.ERROR, Severity.WARNING)
    ]
    name = project.root.name if project.config is None else project.config.general.name
    return f"{name}: {', '.join(counts)}"
