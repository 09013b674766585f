"""`kbuild variants`: what would be built, and one reason for each variant that would not."""

import json
from pathlib import Path
from typing import Any

import click

from kbuild.project import Project
from kbuild.variants import Chosen, Matrix, Selection, Skipped, chosen, select


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def variants(path: Path | None, as_json: bool) -> None:
    """List the variants of the project at PATH, each with its build or the reason why there is none.

    Needs no Nix.
    """
    project = Project.open(path)
    selection = select(project.require_config(), Matrix.load())
    if as_json:
        click.echo(json.dumps({"version": 1, "variants": [_as_json(entry) for entry in selection]}, indent=2))
        return
    for line in _table(selection):
        click.echo(line)
    built = len(chosen(selection))
    click.echo(f"{built} to build, {len(selection) - built} skipped", err=True)


def _as_json(entry: Chosen | Skipped) -> dict[str, Any]:
    if isinstance(entry, Skipped):
        return {
            "variant": entry.name,
            "builds": False,
            "backend": entry.backend.value,
            "reason": entry.reason,
        }
    return {
        "variant": entry.name,
        "builds": True,
        "backend": entry.backend.value,
        "torch": None if entry.torch is None else str(entry.torch),
        "cuda": None if entry.cuda is None else str(entry.cuda),
        "kernels": {
            kernel.id: [str(capability) for capability in kernel.capabilities] for kernel in entry.kernels
        },
    }


def _table(selection: Selection) -> list[str]:
    width = max((len(entry.name) for entry in selection), default=0)
    return [f"{entry.name:{width}}  {_what(entry)}" for entry in selection]


def _what(entry: Chosen | Skipped) -> str:
    if isinstance(entry, Skipped):
        return f"skipped: {entry.reason}"
    archs = " ".join(str(capability) for capability in entry.archs)
    return f"builds for {archs}" if archs else "builds"
