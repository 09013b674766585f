"""`kbuild publish`: verify, plan, upload."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbuild.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kbuild.hub.loadback import LoadBack
    from kbuild.hub.publish import Outcome


@click.command()
@click.argument("repository", metavar="ORG/NAME")
@click.argument("path", default=".", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--create-pr", is_flag=True, help="Open pull requests instead of committing.")
@click.option("--private", is_flag=True, help="If the repository has to be created, make it private.")
@click.option("--branch", metavar="NAME", help="Publish to another branch than v<version>.")
@click.option(
    "--repo-type",
    type=click.Choice(["auto", "kernel", "model"]),
    default="auto",
    help="auto: the repository that exists, else a kernel repository.",
)
@click.option("--allow-dirty", is_flag=True, help="Publish what was built from uncommitted changes.")
@click.option("--verify", is_flag=True, help="Load it back with get_kernel afterwards.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan and what was done as JSON.")
def publish(
    repository: str,
    path: Path,
    *,
    dry_run: bool,
    create_pr: bool,
    private: bool,
    branch: str | None,
    repo_type: str,
    allow_dirty: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Verify the variants in PATH/build, then upload them to the Hub.

    They go to the branch v<version>, in one commit; the model card goes to main. What is there already is not
    sent again, other variants are left alone. The Hub and the token are those of the Hub's own client (hf auth
    login, HF_TOKEN, HF_ENDPOINT).
    """
    _check_repository(repository)
    from kbuild.hub.tree import read_build

    build = read_build(path / "build", violations=_verify(path / "build"), allow_dirty=allow_dirty)

    from kbuild.hub import card
    from kbuild.hub.plan import RepoType
    from kbuild.hub.publish import Hub, Request, make_plan
    from kbuild.hub.publish import publish as apply

    hub = Hub()
    request = Request(
        repo_id=repository,
        build=build,
        card=lambda kind, others: card.render(path, build, repo_id=repository, repo_type=kind, others=others),
        repo_type=None if repo_type == "auto" else RepoType(repo_type),
        branch=branch,
        private=private,
        pull_request=create_pr,
    )
    if dry_run:
        plan = make_plan(hub, request)
        click.echo(
            json.dumps({"version": 1, "dry_run": True, "plan": plan.as_json()}, indent=2)
            if as_json
            else plan.as_text()
        )
        return
    outcome = apply(hub, request, tell=_tell)
    loaded = _load_back(outcome) if verify else None
    click.echo(json.dumps(_as_json(outcome, loaded), indent=2) if as_json else _as_text(outcome))
    if loaded is not None and loaded.state == "failed":
        click.get_current_context().exit(ExitCode.FINDINGS)


def _check_repository(repository: str) -> None:
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UsageError(
            f"{repository!r} names no repository", hint="Give ORGANISATION/NAME, such as my-org/relu."
        )


def _verify(build: Path) -> dict[str, tuple[str, ...]]:
    """What the ABI verification finds wrong, by variant."""
    from kbuild.abi.verify import verify_variant
    from kbuild.hub.tree import variant_folders

    found = {}
    for folder in variant_folders(build):
        _tell(f"Verifying {folder.name}")
        try:
            violations = verify_variant(folder).violations
        except OSError as error:
            raise UsageError(f"Cannot read {error.filename}: {error.strerror}") from error
        found[folder.name] = tuple(
            (v.message if v.path == "." else f"{v.path}: {v.message}") + f" [{v.code}]" for v in violations
        )
    return found


def _load_back(outcome: "Outcome") -> "LoadBack":
    from kbuild.hub.loadback import State, load_back

    plan = outcome.plan
    loaded = load_back(plan.repo_id, plan.repo_type, outcome.revision)
    match loaded.state:
        case State.LOADED:
            _tell(f"Loaded back with get_kernel: {loaded.text}")
        case State.SKIPPED:
            _tell(f"Not loaded back: {loaded.text}")
        case State.FAILED:
            _tell(f"error: get_kernel cannot load what was published: {loaded.text}")
    return loaded


def _as_json(outcome: "Outcome", loaded: "LoadBack | None") -> dict[str, object]:
    return {
        "version": 1,
        "dry_run": False,
        "repository": outcome.plan.repo_id,
        "repository_type": str(outcome.plan.repo_type),
        "revision": outcome.revision,
        "url": outcome.url,
        "plan": outcome.plan.as_json(),
        "commits": [
            {"branch": c.branch, "oid": c.oid, "url": c.url, "pull_request": c.pull_request}
            for c in outcome.commits
        ],
        "load_back": None if loaded is None else {"state": str(loaded.state), "text": loaded.text},
    }


def _as_text(outcome: "Outcome") -> str:
    plan = outcome.plan
    lines = [f"{commit.branch}: {commit.pull_request or commit.url}" for commit in outcome.commits]
    if not lines:
        lines.append("Nothing to do: the Hub has all of it.")
    return "\n".join([*lines, f"{outcome.url} ({plan.repo_type} repository: {plan.repo_type.loaders})"])


def _tell(line: str) -> None:
    click.echo(line, err=True)
