"""`kbuild lock`: list, fetch and refresh the pinned toolchain."""

import json
from collections.abc import Iterable

import click

from kbuild.errors import ExitCode, UsageError
from kbuild.text import did_you_mean
from kbuild.toolchain import Store, load_lock, store_path


@click.group()
def lock() -> None:
    """The pinned toolchain: PyTorch and CUDA, as trees kept of official wheels."""


@lock.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def list_trees(as_json: bool) -> None:
    """List the pinned trees, the wheel each is kept of, and its path in the Nix store. Needs no Nix."""
    trees = load_lock().trees.values()
    if as_json:
        entries = [{"key": tree.key, "path": store_path(tree), **tree.as_json()} for tree in trees]
        click.echo(json.dumps({"version": 1, "trees": entries}, indent=2))
        return
    width = max((len(tree.key) for tree in trees), default=0)
    for tree in trees:
        click.echo(f"{tree.key:{width}}  {tree.nar_size / 1e6:6.1f} MB  {tree.wheel.file}")


@lock.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--variant", "names", multiple=True, metavar="NAME", help="What this variant needs (repeatable)."
)
@click.option("--all", "everything", is_flag=True, help="Every tree (the default).")
@click.option("--store", metavar="URL", help="Another Nix store, as `nix --store` takes it.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result.")
def fetch(
    keys: tuple[str, ...], names: tuple[str, ...], everything: bool, store: str | None, as_json: bool
) -> None:
    """Bring pinned trees into the Nix store, so that builds need no network.

    Only what is kept of each wheel is received. An interrupted fetch goes on where it stopped.
    """
    if everything and (keys or names):
        raise UsageError("--all excludes KEY and --variant")
    from kbuild.cli.transfer import TransferProgress
    from kbuild.toolchain import ensure

    wanted = [*keys, *_trees_of(names)] or list(load_lock().trees)
    with TransferProgress() as progress:
        fetched = ensure(
            wanted, nix=Store(options=() if store is None else ("--store", store)), progress=progress
        )
    if as_json:
        result = {
            "version": 1,
            "bytes_received": fetched.bytes_received,
            "seconds": round(fetched.seconds, 3),
            "trees": dict(fetched.paths),
        }
        click.echo(json.dumps(result, indent=2))
        return
    for key, path in fetched.paths.items():
        click.echo(f"{key}  {path}")
    click.echo(f"{fetched.bytes_received / 1e6:.1f} MB received in {fetched.seconds:.1f} s", err=True)


def _trees_of(names: Iterable[str]) -> list[str]:
    from kbuild.variants import Matrix

    matrix = Matrix.load()
    rows = {str(row.variant): row for row in matrix.rows}
    trees: dict[str, None] = {}
    for name in names:
        if name not in rows:
            raise UsageError(f"no variant is called {name!r}.{did_you_mean(name, rows)}")
        row = rows[name]
        trees[matrix.torch_trees[row.torch]] = None
        if row.compute.version is not None and row.compute.version in matrix.toolkits:
            toolkit = matrix.toolkits[row.compute.version]
            if toolkit.unavailable is not None:
                raise UsageError(f"{name}: {toolkit.unavailable}")
            trees.update(dict.fromkeys(toolkit.trees))
    return list(trees)


@lock.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if anything would change.")
@click.pass_context
def refresh(ctx: click.Context, keys: tuple[str, ...], check: bool) -> None:
    """Make the lock and the symbol lists anew, in kbuild's own data folder. For maintainers.

    Resolves the newest patch releases through pip, downloads whole wheels (half a gigabyte each, removed after
    use), verifies them, and computes what is pinned. Without KEY: everything.
    """
    from kbuild.resources import data_path
    from kbuild.toolchain.refresh import refresh as make_anew

    refreshed = make_anew(keys, load_lock(), lambda text: click.echo(text, err=True))
    changed = refreshed.changed(data_path)
    for name in changed:
        if not check:
            path = data_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.part")
            partial.write_bytes(refreshed.files[name])
            partial.replace(path)
        click.echo(f"{'would change' if check else 'written'}: {name}")
    if not changed:
        click.echo("nothing changed", err=True)
    ctx.exit(ExitCode.FINDINGS if check and changed else ExitCode.OK)
