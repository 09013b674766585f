"""`kbuild init`: a new kernel project."""

import json
import os
import shlex
from pathlib import Path

import click

from kbuild import process
from kbuild.errors import UsageError
from kbuild.scaffold import Backend, Op, Scaffold, parse_function, parse_repository, render, write
from kbuild.sources.files import CONFIG_NAME
from kbuild.text import did_you_mean


@click.command()
@click.argument("repository", metavar="ORG/NAME")
@click.option("--backends", default="cuda,cpu", show_default=True, metavar="LIST", help="cuda, cpu or both.")
@click.option("--stable-abi", is_flag=True, help="One build for PyTorch 2.10 and all later ones.")
@click.option("--noarch", is_flag=True, help="A Triton kernel: Python alone, nothing to compile.")
@click.option(
    "--op",
    type=click.Choice([op.value for op in Op]),
    default=Op.ELEMENTWISE.value,
    show_default=True,
    help="The operation to start from.",
)
@click.option(
    "--function", metavar="NAME", help="What your operation is called.  [default: silu or rms_norm, by --op]"
)
@click.option("--dest", type=click.Path(path_type=Path), help="Folder of the project.  [default: ./NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def init(
    repository: str,
    backends: str,
    stable_abi: bool,
    noarch: bool,
    op: str,
    function: str | None,
    dest: Path | None,
    as_json: bool,
) -> None:
    """Write a complete project for the kernel that ORG/NAME will be on the Hub.

    It checks, builds, tests and, with cuda, benchmarks as it stands; then put your own operation in the place of its
    own, which --function has named already: the function, its files and its layer.
    """
    org, name = parse_repository(repository)
    if noarch and stable_abi:
        raise UsageError(
            "--stable-abi is for compiled projects, and --noarch compiles nothing",
            hint="leave --stable-abi out: one noarch build serves every PyTorch anyway",
        )
    scaffold = Scaffold(
        org=org,
        name=name,
        backends=_backends(backends, noarch=noarch),
        op=Op(op),
        stable_abi=stable_abi,
        noarch=noarch,
        function=None if function is None else parse_function(function, Op(op)),
    )
    target = dest if dest is not None else Path(name)
    files = render(scaffold)
    write(files, target)
    if as_json:
        document = {"version": 1, "project": str(target.resolve()), "files": sorted(files)}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(target)
    click.echo(_next_steps(target, len(files)), err=True)


def _backends(text: str, *, noarch: bool) -> tuple[Backend, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [backend.value for backend in Backend]
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no template for backend {name!r}.{did_you_mean(name, known)}",
                hint="--backends takes cuda, cpu or cuda,cpu",
            )
    if not names:
        raise UsageError("--backends names none", hint="--backends takes cuda, cpu or cuda,cpu")
    if noarch and Backend.CUDA.value not in names:
        raise UsageError(
            "--noarch is for a Triton kernel, which needs a GPU: cuda is not among the backends",
            hint="--backends takes cuda or cuda,cpu with --noarch",
        )
    return tuple(Backend(name) for name in dict.fromkeys(names))


def _next_steps(target: Path, count: int) -> str:
    folder = shlex.quote(str(target))
    enter = "" if target.resolve() == Path.cwd() else f"cd {folder} && "
    return (
        f"{count} files. Next: {_git_add(target, folder)}{enter}kbuild check && kbuild build && kbuild test"
    )


def _git_add(target: Path, folder: str) -> str:
    """What comes first in a git work tree, where a build sees only what git tracks."""
    if process.which("git") is None or not _git(target, "rev-parse", "--show-toplevel").ok:
        return ""
    force = "-f " if _git(target, "check-ignore", "-q", CONFIG_NAME).ok else ""
    return f"git add {force}{folder} && "


def _git(folder: Path, *argv: str) -> process.Completed:
    return process.run(["git", *argv], cwd=folder, env={**os.environ, "LC_ALL": "C"})
