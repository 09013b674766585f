"""`kbuild schema`: the JSON Schema of build.toml, for editors."""

import json

import click

from kbuild.config.json_schema import json_schema


@click.command()
def schema() -> None:
    """Print the JSON Schema of build.toml (edition 5).

    Editors with a TOML language server complete and validate by it: kbuild schema > build.schema.json, and
    `#:schema ./build.schema.json` as the first line of build.toml.
    """
    click.echo(json.dumps(json_schema(), indent=2))
