"""`kbuild abi`: the ABI verification alone."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbuild.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kbuild.abi.verdict import Context, Verdict

# A library linked the wrong way can break a rule hundreds of times; `--json` has them all.
_SHOWN_PER_RULE = 10
_PATHS = "give a project, its build folder, one variant's folder, or a .so file"


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--torch", metavar="VERSION", help="For a single library: the PyTorch release it is for, e.g. 2.13."
)
@click.option("--compute", metavar="COMPUTE", help="For a single library: cpu or a CUDA version, e.g. cu130.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as JSON.")
@click.pass_context
def abi(
    ctx: click.Context, paths: tuple[Path, ...], torch: str | None, compute: str | None, as_json: bool
) -> None:
    """Verify the ABI of built variants, or of single libraries.

    PATH is a project, its build folder, one variant's folder, or a .so file. Of a file alone only its own rules
    are judged; --torch and --compute tell what the others need. Exits with 1 where a rule is broken.
    """
    libraries = [path for path in paths if path.is_file()]
    if (torch or compute) and len(libraries) < len(paths):
        raise UsageError("--torch and --compute are for single libraries: a variant's folder states both")
    context = _context(torch, compute)
    verdicts = [verdict for path in paths for verdict in _judge(path, context)]
    if as_json:
        document = {
            "version": 1,
            "ok": all(verdict.ok for verdict in verdicts),
            "verdicts": [verdict.as_json() for verdict in verdicts],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        for verdict in verdicts:
            click.echo("\n".join(_text(verdict)))
    if not all(verdict.ok for verdict in verdicts):
        ctx.exit(ExitCode.FINDINGS)


def _context(torch: str | None, compute: str | None) -> "Context":
    from kbuild.abi.verify import torch_context
    from kbuild.config.model import Version
    from kbuild.variants import Compute

    try:
        release = None if torch is None else Version.parse(torch)
    except ValueError as error:
        raise UsageError(f"--torch: {error}", hint="give major and minor, such as 2.13") from error
    try:
        return torch_context(release, None if compute is None else Compute.parse(compute))
    except ValueError as error:
        raise UsageError(f"--compute: {error}", hint="give cpu, or a CUDA version such as cu130") from error


def _judge(path: Path, context: "Context") -> "Iterator[Verdict]":
    from kbuild.abi.verify import verify_library, verify_variant

    try:
        if path.is_dir():
            for folder in _variant_folders(path):
                yield verify_variant(folder)
        elif path.exists() and not path.is_file():
            raise UsageError(f"{path} is neither a file nor a folder", hint=_PATHS)
        else:
            yield verify_library(path, replace(context, path=path.name))
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read: {error.strerror}",
            hint=_PATHS,
        ) from error


def _variant_folders(path: Path) -> list[Path]:
    from kbuild.metadata import FILE_NAME
    from kbuild.variants import parse

    def names_variant(name: str) -> bool:
        try:
            parse(name)
        except ValueError:
            return False
        return True

    def is_variant(folder: Path) -> bool:
        return names_variant(folder.resolve().name) or (folder / FILE_NAME).is_file()

    if is_variant(path):
        return [path]
    tree = path / "build" if (path / "build.toml").is_file() else path
    folders = (
        sorted(f for f in tree.iterdir() if f.is_dir() and not f.name.startswith("."))
        if tree.is_dir()
        else []
    )
    for path in sorted(tree.iterdir()) if tree.is_dir() else ():
        if path not in folders and names_variant(path.name):
            raise UsageError(
                f"{path} is called as a variant, and is no folder", hint="remove it and build again"
            )
    if not any(map(is_variant, folders)):
        raise UsageError(f"{tree} holds no build variant", hint="build one first: kbuild build")
    return folders


def _text(verdict: "Verdict") -> Iterator[str]:
    count = len(verdict.violations)
    yield f"{verdict.subject}: " + ("ok" if verdict.ok else f"{count} violation{'s' * (count > 1)}")
    width = max(len(result.title) for result in verdict.results)
    for path, results in groupby(verdict.results, key=lambda result: result.path):
        if path != ".":
            yield f"  {path}"
        for result in results:
            state = "-" if result.skipped else "FAIL" if result.violations else "ok"
            found = f"not applicable: {result.skipped}" if result.skipped else result.found
            yield f"    {state:<5} {result.title:<{width}}  {found}"
    for result in verdict.results:
        for violation in result.violations[:_SHOWN_PER_RULE]:
            place = verdict.subject.name if violation.path == "." else violation.path
            yield f"  {place}: violation[{violation.code}]: {violation.message}"
        hidden = len(result.violations) - _SHOWN_PER_RULE
        if hidden > 0:
            yield f"  ... and {hidden} more (--json lists them all)"
        for hint in dict.fromkeys(v.hint for v in result.violations if v.hint is not None):
            yield f"    hint: {hint}"
