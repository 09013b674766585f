"""`kbuild localhub`: a Hub on loopback."""

import json
from pathlib import Path

import click


@click.group()
def localhub() -> None:
    """Run a Hub on loopback, for tests and demos."""


@localhub.command()
@click.option(
    "--root", type=click.Path(path_type=Path), required=True, help="Folder of its state; made if missing."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 (the default) takes a free one.")
@click.option("--org", "orgs", multiple=True, metavar="NAME", help="An organisation; all users are members.")
@click.option(
    "--trusted-org", "trusted", multiple=True, metavar="NAME", help="One that is a trusted publisher."
)
@click.option("--user", "users", multiple=True, metavar="NAME", help="A user, followed by their --token.")
@click.option("--token", "tokens", multiple=True, metavar="TOKEN", help="The token of the --user before it.")
@click.option("--refuse-kernels", is_flag=True, help="Refuse the creation of kernel repositories.")
@click.option("--print-env", is_flag=True, help="Print the clients' settings as one line of JSON when ready.")
def serve(
    root: Path,
    port: int,
    orgs: tuple[str, ...],
    trusted: tuple[str, ...],
    users: tuple[str, ...],
    tokens: tuple[str, ...],
    *,
    refuse_kernels: bool,
    print_env: bool,
) -> None:
    """Serve until interrupted.

    Without --user and --org: user demo-user and organisation demo-org.
    """
    if len(users) != len(tokens):
        raise click.UsageError("Each --user takes one --token.")
    from kbuild.localhub.config import Config, User
    from kbuild.localhub.running import DEMO, environment, in_all_orgs
    from kbuild.localhub.running import serve as serve_hub

    config = in_all_orgs(
        Config(
            users=tuple(User(name=name, token=token) for name, token in zip(users, tokens, strict=True))
            or DEMO.users,
            orgs=(*orgs, *trusted) or DEMO.orgs,
            trusted_orgs=frozenset(trusted),
            allow_kernels=not refuse_kernels,
        )
    )

    def ready(endpoint: str) -> None:
        click.echo(f"Serving {root} at {endpoint}; Ctrl-C ends it.", err=True)
        if print_env:
            settings = environment(endpoint, config.users[0].token, root.absolute() / "client-home")
            click.echo(json.dumps({"version": 1, "environment": settings}))

    serve_hub(root, config, port=port, on_ready=ready)
