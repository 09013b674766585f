"""`kbuild explain`: what a code of `kbuild check` means, why it matters and how to mend it."""

import json
from dataclasses import asdict

import click

from kbuild.errors import UsageError
from kbuild.explain import Explanation, explanations
from kbuild.text import did_you_mean


@click.command()
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def explain(code: str | None, as_json: bool) -> None:
    """Explain CODE, as it stands in brackets in a finding; without it, list every code."""
    known = explanations()
    if code is not None and code not in known:
        raise UsageError(
            f"there is no code {code!r}.{did_you_mean(code, known)}", hint="`kbuild explain` lists them"
        )
    chosen = list(known.values()) if code is None else [known[code]]
    if as_json:
        click.echo(json.dumps({"version": 1, "rules": [asdict(entry) for entry in chosen]}, indent=2))
    elif code is None:
        width = max(map(len, known))
        for entry in chosen:
            click.echo(f"{entry.code:{width}}  {entry.what}")
    else:
        click.echo(_page(chosen[0]))


def _page(entry: Explanation) -> str:
    return f"{entry.code}: {entry.what}\n\nWhy: {entry.why}\n\nFix: {entry.fix}"
