"""`kbuild publish`: verify, plan, upload."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbuild.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kbuild.hub.loadback import LoadBack
    from kbuild.hub.publish import Outcome
    from kbuild.hub.tree import LocalBuild, LocalFile
    from kbuild.project import Project

_INTERRUPTED = 130


@click.command()
@click.argument("words", metavar="[ORG/NAME] [PATH]", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--create-pr", is_flag=True, help="Open pull requests instead of committing.")
@click.option("--private", is_flag=True, help="If the repository has to be created, make it private.")
@click.option(
    "--branch", metavar="NAME", help="Publish to another branch than general.hub.branch, or v<version>."
)
@click.option(
    "--repo-type",
    type=click.Choice(["auto", "kernel", "model"]),
    default="auto",
    help="auto: the repository that exists, else a kernel repository.",
)
@click.option("--allow-dirty", is_flag=True, help="Publish what was built from uncommitted changes.")
@click.option("--allow-mixed", is_flag=True, help="Publish variants of different commits together.")
@click.option("--allow-unverified", is_flag=True, help="Publish for a PyTorch whose symbols are not known.")
@click.option("--verify", is_flag=True, help="Load it back with get_kernel afterwards.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan and what was done as JSON.")
@click.pass_context
def publish(
    ctx: click.Context,
    words: tuple[str, ...],
    *,
    dry_run: bool,
    create_pr: bool,
    private: bool,
    branch: str | None,
    repo_type: str,
    allow_dirty: bool,
    allow_mixed: bool,
    allow_unverified: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Verify the variants in build/ of the project at PATH, then upload them to the Hub.

    ORG/NAME is general.hub.repo-id of build.toml unless given. A PATH alone starts with a dot or a slash. Variants go
    to the branch v<version>, in one commit, with benchmarks/benchmark*.py; the model card goes to main. What is there
    already is not sent again, other variants are left alone. The Hub and the token are those of the Hub's own client
    (hf auth login, HF_TOKEN, HF_ENDPOINT).
    """
    named, path = _arguments(words)
    if named is not None:
        _check_repository(named)
    from kbuild.config.model import Hub

    try:
        root, project = _locate(path)
    except UsageError:
        if path is None and named is not None and Path(named).is_dir():
            raise UsageError(
                f"{named!r} names a repository, and no project is here", hint=f"As a path, write ./{named}"
            ) from None
        raise
    config = None if project is None else project.require_config()
    defaults = Hub() if config is None else config.general.hub
    repository = named or defaults.repo_id
    if repository is None:
        raise UsageError(
            "No repository is named", hint="Give ORG/NAME, or set repo-id in [general.hub] of build.toml."
        )
    from kbuild.hub.tree import commits_of, read_build

    tree = root / "build"
    build = read_build(
        tree,
        violations=_verify(tree, allow_unverified=allow_unverified),
        config=config,
        allow_dirty=allow_dirty,
        allow_mixed=allow_mixed,
    )
    commits = commits_of(build.variants)
    for commit, names in commits.items() if len(commits) > 1 else ():
        _tell(f"warning: {', '.join(names)} from {commit}")

    from kbuild.hub import card
    from kbuild.hub.plan import RepoType
    from kbuild.hub.publish import Hub as Remote
    from kbuild.hub.publish import Request, make_plan
    from kbuild.hub.publish import publish as apply

    hub = Remote()
    request = Request(
        repo_id=repository,
        build=build,
        card=lambda kind, others: card.render(root, build, repo_id=repository, repo_type=kind, others=others),
        repo_type=None if repo_type == "auto" else RepoType(repo_type),
        benchmarks=_benchmarks(project),
        notes=() if project is None else tuple(_notes(project, build)),
        branch=branch or defaults.branch,
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
    try:
        outcome = apply(hub, request, tell=_tell)
    except KeyboardInterrupt:
        _tell(
            f"\nInterrupted. {repository} may be new, have a new branch, or have some of the commits; no commit is "
            "half there. Run the command again to do the rest."
        )
        ctx.exit(_INTERRUPTED)
    loaded = _load_back(outcome) if verify else None
    click.echo(json.dumps(_as_json(outcome, loaded), indent=2) if as_json else _as_text(outcome))
    if loaded is not None and loaded.state == "failed":
        ctx.exit(ExitCode.FINDINGS)


def _arguments(words: tuple[str, ...]) -> tuple[str | None, Path | None]:
    """ORG/NAME and PATH, each None where it is not given."""
    match words:
        case ():
            return None, None
        case (word,) if word in (".", "..") or word.startswith(("./", "../", "/")):
            return None, Path(word)
        case (word,) if "/" not in word and Path(word).exists():
            raise UsageError(f"{word!r} names no repository", hint=f"As a path, write ./{word}")
        case (repository,):
            return repository, None
        case (repository, path):
            return repository, Path(path)
        case _:
            raise UsageError("Too many words", hint="kbuild publish [ORG/NAME] [PATH]")


def _locate(path: Path | None) -> "tuple[Path, Project | None]":
    """The folder whose build/ is meant, and the project that it is; a build from elsewhere needs no project."""
    from kbuild.project import Project, find_root
    from kbuild.sources.files import CONFIG_NAME

    if path is not None and path.resolve().name == "build":
        parent = path.resolve().parent
        path = parent if (parent / CONFIG_NAME).is_file() else path
    try:
        root = find_root(path)
    except UsageError:
        root = path or Path()
        if (root / "build").is_dir():
            return root, None
        raise
    return root, Project.open(root)


def _benchmarks(project: "Project | None") -> "tuple[LocalFile, ...]":
    from kbuild.hub.plan import is_benchmark
    from kbuild.hub.tree import hashed

    if project is None:
        return ()
    return tuple(hashed(project.root / name, name) for name in project.visible_files() if is_benchmark(name))


def _notes(project: "Project", build: "LocalBuild") -> "Iterator[str]":
    """What the author may not know of the build."""
    from kbuild import freshness
    from kbuild.hub.tree import unbuilt

    if stale := freshness.note(project):
        yield stale
    if backends := unbuilt(build, project.require_config()):
        yield f"build/ has no variant for {' and '.join(backends)}: run `kbuild build --all-variants` for the rest"


def _check_repository(repository: str) -> None:
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UsageError(
            f"{repository!r} names no repository", hint="Give ORGANISATION/NAME, such as my-org/relu."
        )


def _verify(build: Path, *, allow_unverified: bool) -> dict[str, tuple[str, ...]]:
    """What the ABI verification finds wrong, by variant."""
    from kbuild.abi.verify import verify_variant
    from kbuild.hub.tree import variant_folders

    found = {}
    for folder in variant_folders(build):
        _tell(f"Verifying {folder.name}")
        try:
            verdict = verify_variant(folder)
        except OSError as error:
            raise UsageError(f"Cannot read {error.filename}: {error.strerror}") from error
        problems = [
            (v.message if v.path == "." else f"{v.path}: {v.message}") + f" [{v.code}]"
            for v in verdict.violations
        ]
        for reason in verdict.unverified:
            if allow_unverified:
                _tell(f"warning: {folder.name} is not verified: {reason}")
            else:
                problems.append(f"cannot be verified: {reason}; say --allow-unverified to publish it anyway")
        found[folder.name] = tuple(problems)
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
