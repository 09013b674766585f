"""Applies a plan to the Hub; the only importer of `huggingface_hub`.

Every step can be repeated: a run that was cut short leaves a repository, a branch, or a whole commit, and the next run
does the rest.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import assert_never

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import disable_progress_bars

from kbuild import __version__, metadata
from kbuild.config.schema import REPO_ID_RULE
from kbuild.errors import HubError, UsageError
from kbuild.hub.plan import (
    MAIN,
    BranchPlan,
    Plan,
    RemoteBranch,
    RemoteFile,
    RepoType,
    newest_version,
    plan_build,
    plan_card,
)
from kbuild.hub.tree import LocalBuild, LocalFile, content_file
from kbuild.metadata import FILE_NAME, Metadata, MetadataError

_ATTEMPTS = 5
_PULL_REQUESTS = 10
_SIGN_IN = "Sign in with `hf auth login`, or set HF_TOKEN to a token that may write."

Tell = Callable[[str], None]


class TipMovedError(Exception):
    """Somebody else committed between our listing and our commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be published where. `repo_type` None: what exists, else a kernel repository.

    `card` makes the card's text, given the type and the variants that stay on the Hub besides ours, with what is known
    of each. `benchmarks` go beside the build; `notes` are what is to be said of it.
    """

    repo_id: str
    build: LocalBuild
    card: Callable[[RepoType, Mapping[str, Metadata | None]], str]
    benchmarks: tuple[LocalFile, ...] = ()
    notes: tuple[str, ...] = ()
    repo_type: RepoType | None = None
    branch: str | None = None
    private: bool = False
    pull_request: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit that was made, or found in a pull request that proposes the same.

    `pull_request` is the address of the one that it is in.
    """

    branch: str
    oid: str
    url: str
    revision: str
    pull_request: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What publishing did. `revision` is where the build is now."""

    plan: Plan
    commits: tuple[Commit, ...]
    url: str
    revision: str


class Hub:
    """The few calls that publishing makes, with every failure turned into a HubError that says the way out."""

    def __init__(self, *, endpoint: str | None = None, token: str | None = None) -> None:
        if "HF_HUB_DISABLE_XET" not in os.environ:
            # Xet is chosen by the client alone, and a Hub without it (a mirror, one on loopback) then fails; every
            # Hub takes LFS, and a kernel's libraries are too small to miss it. HF_HUB_DISABLE_XET=0 brings it back.
            constants.HF_HUB_DISABLE_XET = True
        if not sys.stderr.isatty():
            disable_progress_bars()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        self._metadata: dict[str, Metadata | None] = {}
        self._api = HfApi(endpoint=endpoint, token=token, library_name="kbuild", library_version=__version__)

    def url(self, repo_id: str, repo_type: RepoType, revision: str) -> str:
        prefix = "kernels/" if repo_type is RepoType.KERNEL else ""
        return f"{self._api.endpoint}/{prefix}{repo_id}/tree/{revision}"

    def branches(self, repo_id: str, repo_type: RepoType) -> dict[str, str] | None:
        """Commit of every branch; None where the repository does not exist (for this token)."""
        with self._doing(f"list the branches of {repo_id}", repo_id):
            try:
                refs = self._api.list_repo_refs(repo_id, repo_type=str(repo_type))
            except RepositoryNotFoundError:
                return None
            return {branch.name: branch.target_commit for branch in refs.branches}

    def pull_requests(self, repo_id: str, repo_type: RepoType) -> list[tuple[int, str]]:
        """Number and commit of pull requests, newest first; whether they are open is not known."""
        with self._doing(f"list the pull requests of {repo_id}", repo_id):
            refs = self._api.list_repo_refs(repo_id, repo_type=str(repo_type), include_pull_requests=True)
            pulls = [
                (int(pull.ref.rpartition("/")[2]), pull.target_commit) for pull in refs.pull_requests or ()
            ]
            return sorted(pulls, reverse=True)

    def pull_request(
        self, repo_id: str, repo_type: RepoType, branch: str, number: int, commit: str
    ) -> Commit:
        """A pull request that is there, as if it was made now."""
        address = self.url(repo_id, repo_type, "").removesuffix("/tree/")
        return Commit(
            branch=branch,
            oid=commit,
            url=f"{address}/commit/{commit}",
            revision=f"refs/pr/{number}",
            pull_request=f"{address}/discussions/{number}",
        )

    def files(self, repo_id: str, repo_type: RepoType, commit: str) -> tuple[RemoteFile, ...]:
        with self._doing(f"list the files of {repo_id}", repo_id):
            entries = self._api.list_repo_tree(
                repo_id, recursive=True, revision=commit, repo_type=str(repo_type)
            )
            return tuple(
                RemoteFile(
                    path=entry.path,
                    git_oid=entry.blob_id,
                    sha256=None if entry.lfs is None else entry.lfs.sha256,
                )
                for entry in entries
                if isinstance(entry, RepoFile)
            )

    def metadata(self, repo_id: str, repo_type: RepoType, commit: str, file: RemoteFile) -> Metadata | None:
        """What a metadata.json on the Hub says; None where it cannot be read as one."""
        if file.git_oid not in self._metadata:
            with (
                self._doing(f"read {file.path} of {repo_id}", repo_id),
                tempfile.TemporaryDirectory(prefix="kbuild-metadata-") as folder,
            ):
                path = self._api.hf_hub_download(
                    repo_id, file.path, repo_type=str(repo_type), revision=commit, local_dir=folder
                )
                try:
                    self._metadata[file.git_oid] = metadata.load(Path(path))
                except MetadataError:
                    self._metadata[file.git_oid] = None
        return self._metadata[file.git_oid]

    def history(self, repo_id: str, repo_type: RepoType, revision: str) -> list[str]:
        """Commits of a branch, newest first."""
        with self._doing(f"list the commits of {repo_id}", repo_id):
            commits = self._api.list_repo_commits(repo_id, revision=revision, repo_type=str(repo_type))
            return [commit.commit_id for commit in commits]

    def create_repo(self, repo_id: str, repo_type: RepoType, *, private: bool) -> None:
        with self._doing(f"create the {repo_type} repository {repo_id}", repo_id, creating=repo_type):
            try:
                self._api.create_repo(repo_id, repo_type=str(repo_type), private=private or None)
            except HfHubHTTPError as error:
                # Somebody was faster, which is fine, or it is there and hidden from this token, which the next
                # listing finds out.
                if error.response.status_code != 409:
                    raise

    def create_branch(self, repo_id: str, repo_type: RepoType, branch: str, start: str) -> None:
        with self._doing(f"create the branch {branch} of {repo_id}", repo_id):
            self._api.create_branch(
                repo_id, branch=branch, revision=start, repo_type=str(repo_type), exist_ok=True
            )

    def commit(
        self, repo_id: str, repo_type: RepoType, plan: BranchPlan, *, title: str, pull_request: bool
    ) -> Commit:
        """Make the plan's one commit. Raises TipMovedError where the branch is not at the plan's parent any more."""
        with self._doing(f"commit to {plan.branch} of {repo_id}", repo_id):
            try:
                info = self._api.create_commit(
                    repo_id,
                    _operations(plan),
                    commit_message=title,
                    revision=plan.branch,
                    repo_type=str(repo_type),
                    create_pr=pull_request,
                    parent_commit=plan.parent,
                )
            except HfHubHTTPError as error:
                if error.response.status_code == 412:
                    raise TipMovedError from None
                raise
        return Commit(
            branch=plan.branch,
            oid=info.oid,
            url=info.commit_url,
            revision=info.pr_revision or plan.branch,
            pull_request=info.pr_url,
        )

    @contextmanager
    def _doing(self, what: str, repo_id: str, *, creating: RepoType | None = None) -> Iterator[None]:
        try:
            yield
        except HFValidationError as error:
            raise UsageError(
                f"{repo_id!r} cannot be the name of a repository: {REPO_ID_RULE}",
                hint="Give ORGANISATION/NAME or USER/NAME.",
            ) from error
        except Exception as error:
            match _cause(error):
                case HfHubHTTPError() as refusal:
                    raise self._refused(what, repo_id, refusal, creating) from error
                case None:
                    raise
                case failure:
                    raise HubError(
                        f"Cannot {what}: {self._api.endpoint} did not answer ({_reason(failure)})",
                        hint="Check the network, and HF_ENDPOINT if it is set. Running the command again is safe.",
                    ) from error

    def _refused(self, what: str, repo_id: str, error: HfHubHTTPError, creating: RepoType | None) -> HubError:
        status = error.response.status_code
        said = error.response.headers.get("X-Error-Message") or error.server_message or f"status {status}"
        message = f"Cannot {what}: {said.rstrip('.')}"
        match status:
            case 401:
                return HubError(message, hint=f"The Hub takes no token, or not this one. {_SIGN_IN}")
            case 403 | 404:
                return HubError(message, hint=self._who_may(repo_id, creating))
            case 429:
                return HubError(message, hint="The Hub asks to slow down: run the command again in a while.")
            case _ if status >= 500:
                return HubError(message, hint="The Hub has trouble. Running the command again is safe.")
            case _:
                return HubError(message)

    def _who_may(self, repo_id: str, creating: RepoType | None) -> str:
        """Why a write may have been refused, from what the Hub says of the token's owner."""
        namespace = repo_id.partition("/")[0]
        try:
            me = self._api.whoami()
        except Exception as error:
            if _cause(error) is None and not isinstance(error, OSError):
                raise
            return _SIGN_IN
        name, orgs = me.get("name"), [org.get("name") for org in me.get("orgs", [])]
        if namespace not in (name, *orgs):
            known = (
                f"{name}, a member of {', '.join(orgs)}" if orgs else f"{name}, a member of no organisation"
            )
            return f"The token belongs to {known}, and {namespace!r} is none of these."
        if me.get("auth", {}).get("accessToken", {}).get("role") == "read":
            return f"The token may only read. {_SIGN_IN}"
        match creating:
            case RepoType.KERNEL:
                return (
                    "The Hub lets only approved publishers create kernel repositories: ask for approval there, or "
                    f"say --repo-type model for a model repository ({RepoType.MODEL.loaders})."
                )
            case RepoType.MODEL | None:
                return f"Ask an administrator of {namespace} for the right to write to {repo_id}."
            case _:
                assert_never(creating)


def make_plan(hub: Hub, request: Request) -> Plan:
    """What publishing would do now; reads only."""
    repo_type, branches = _find(hub, request)
    if branches is None and request.pull_request:
        raise HubError(
            f"There is no repository {request.repo_id} to open a pull request against",
            hint="Publish without --create-pr to create it, or check its name and that the token may see it.",
        )
    create_repo = branches is None
    target = request.branch or request.build.branch
    branch = None if branches is None else _remote(hub, request.repo_id, repo_type, branches, target)
    base = branch if branch is not None or branches is None else _base(hub, request.repo_id, repo_type)
    build = plan_build(target, _build_files(hub, request, repo_type, branch), base, create=branch is None)
    plans, notes = [build], [*request.notes]
    reason = _no_card(request, branches or {})
    if reason is not None:
        notes.append(reason)
    elif target != MAIN:
        main = None if branches is None else _remote(hub, request.repo_id, repo_type, branches, MAIN)
        plans.append(plan_card(_card(hub, request, repo_type, branch), main))
    return Plan(
        repo_id=request.repo_id,
        repo_type=repo_type,
        create_repo=create_repo,
        private=request.private,
        pull_request=request.pull_request,
        branches=tuple(plans),
        notes=tuple(notes),
    )


def publish(hub: Hub, request: Request, *, tell: Tell) -> Outcome:
    """Do what the plan says, as the Hub stands at each step: repository, branch, one commit on each branch."""
    plan = make_plan(hub, request)
    repo_id, repo_type = plan.repo_id, plan.repo_type
    if plan.create_repo:
        tell(f"Creating the {repo_type} repository {repo_id}: {repo_type.loaders}")
        hub.create_repo(repo_id, repo_type, private=request.private)
    commits: list[Commit] = []
    for step in plan.branches:
        commit = _settle(hub, request, repo_type, step.branch, tell=tell)
        if commit is not None:
            commits.append(commit)
    for note in plan.notes:
        tell(f"note: {note}")
    target = plan.branches[0].branch
    revision = next((commit.revision for commit in commits if commit.branch == target), target)
    return Outcome(
        plan=plan, commits=tuple(commits), url=hub.url(repo_id, repo_type, revision), revision=revision
    )


def _settle(hub: Hub, request: Request, repo_type: RepoType, name: str, *, tell: Tell) -> Commit | None:
    """Bring one branch to what it should be, planning anew whenever somebody else was faster."""
    repo_id, target = request.repo_id, request.branch or request.build.branch
    for _ in range(_ATTEMPTS):
        branches = hub.branches(repo_id, repo_type)
        if branches is None:
            raise HubError(
                f"The repository {repo_id} exists, but this token may not see it, or it was deleted just now",
                hint=_SIGN_IN,
            )
        if name not in branches:
            tell(f"Creating the branch {name}")
            hub.create_branch(repo_id, repo_type, name, _root(hub, repo_id, repo_type))
            continue
        remote = _remote(hub, repo_id, repo_type, branches, name)
        if name == target:
            title = _title(request.build)
            replan = partial(plan_build, name, _build_files(hub, request, repo_type, remote), create=False)
        else:
            title = f"Describe {request.build.branch}"
            published = _remote(hub, repo_id, repo_type, branches, target)
            replan = partial(plan_card, _card(hub, request, repo_type, published))
        plan = replan(remote)
        if not plan.changes:
            tell(f"{name}: nothing to commit, {len(plan.unchanged)} file(s) are there already")
            return None
        proposed = None
        if request.pull_request and remote is not None:
            proposed = _proposed(hub, request, repo_type, name, remote.commit, replan)
        if proposed is not None:
            tell(f"{name}: {proposed.pull_request} proposes this already; if it was closed, reopen it there")
            return proposed
        tell(f"{name}: uploading {len(plan.uploads)} file(s), deleting {len(plan.deletions)}")
        try:
            return hub.commit(repo_id, repo_type, plan, title=title, pull_request=request.pull_request)
        except TipMovedError:
            tell(f"{name}: somebody else committed meanwhile; looking again")
    raise HubError(
        f"The branch {name} of {repo_id} kept moving: {_ATTEMPTS} attempts",
        hint="Let the others finish, then run the command again: it is safe.",
    )


def _proposed(
    hub: Hub,
    request: Request,
    repo_type: RepoType,
    name: str,
    tip: str,
    replan: Callable[[RemoteBranch], BranchPlan],
) -> Commit | None:
    """One of the latest pull requests against a branch, if it holds all that we would propose."""
    repo_id = request.repo_id
    for number, commit in hub.pull_requests(repo_id, repo_type)[:_PULL_REQUESTS]:
        remote = RemoteBranch(name=name, commit=commit, files=hub.files(repo_id, repo_type, commit))
        # On top of anything but the tip it is another branch's, or merged already.
        if not replan(remote).changes and hub.history(repo_id, repo_type, commit)[1:2] == [tip]:
            return hub.pull_request(repo_id, repo_type, name, number, commit)
    return None


def _find(hub: Hub, request: Request) -> tuple[RepoType, dict[str, str] | None]:
    """The type to use, and the repository's branches where it exists."""
    if request.repo_type is not None:
        return request.repo_type, hub.branches(request.repo_id, request.repo_type)
    for repo_type in (RepoType.KERNEL, RepoType.MODEL):
        branches = hub.branches(request.repo_id, repo_type)
        if branches is not None:
            return repo_type, branches
    return RepoType.KERNEL, None


def _remote(
    hub: Hub, repo_id: str, repo_type: RepoType, branches: dict[str, str], name: str
) -> RemoteBranch | None:
    if name not in branches:
        return None
    commit = branches[name]
    remote = RemoteBranch(name=name, commit=commit, files=hub.files(repo_id, repo_type, commit))
    if name == MAIN or remote.variants:
        return remote
    # A branch that was made and never committed to, perhaps by a run that was cut short.
    pristine = commit in hub.history(repo_id, repo_type, MAIN)
    return RemoteBranch(name=name, commit=commit, files=remote.files, pristine=pristine)


def _base(hub: Hub, repo_id: str, repo_type: RepoType) -> RemoteBranch:
    """What a new branch would hold before anything is published on it."""
    commit = _root(hub, repo_id, repo_type)
    return RemoteBranch(name=MAIN, commit=commit, files=hub.files(repo_id, repo_type, commit))


def _root(hub: Hub, repo_id: str, repo_type: RepoType) -> str:
    """Where new branches start: the first commit, because the Hub's client cannot make an empty branch."""
    return hub.history(repo_id, repo_type, MAIN)[-1]


def _build_files(
    hub: Hub, request: Request, repo_type: RepoType, remote: RemoteBranch | None
) -> Sequence[LocalFile]:
    files = [*request.build.files, *request.benchmarks]
    if request.branch == MAIN:
        files.append(_card(hub, request, repo_type, remote))
    return files


def _card(hub: Hub, request: Request, repo_type: RepoType, published: RemoteBranch | None) -> LocalFile:
    others: dict[str, Metadata | None] = {}
    if published is not None and not published.pristine:
        files = {file.path: file for file in published.files}
        for name in published.variants - {variant.name for variant in request.build.variants}:
            file = files.get(f"build/{name}/{FILE_NAME}")
            if file is None:
                others[name] = None
            else:
                others[name] = hub.metadata(request.repo_id, repo_type, published.commit, file)
    return content_file("README.md", request.card(repo_type, others).encode())


def _no_card(request: Request, branches: dict[str, str]) -> str | None:
    """Why the card is left as it is, if it is."""
    if request.branch not in (None, MAIN, request.build.branch):
        return (
            f"the card is left alone: {request.branch} is not where loaders look for {request.build.branch}"
        )
    newest = newest_version(branches)
    if newest is not None and newest > request.build.metadata.version:
        return f"the card is left alone: v{newest} is newer than {request.build.branch}"
    return None


def _title(build: LocalBuild) -> str:
    names = [variant.name for variant in build.variants]
    what = names[0] if len(names) == 1 else f"{len(names)} variants"
    return f"Publish {what} of {build.metadata.name} {build.branch}"


def _operations(plan: BranchPlan) -> list[CommitOperationAdd | CommitOperationDelete]:
    # NB: deletions first, so that a file can take the place of a folder.
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationDelete(path_in_repo=path, is_folder=False) for path in plan.deletions
    ]
    for file in plan.uploads:
        operation = CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=file.source)
        if operation.upload_info.sha256.hex() != file.sha256:
            raise HubError(
                f"{file.path} changed while it was being published",
                hint="Let the build finish, then publish again. Nothing was committed.",
            )
        operations.append(operation)
    return operations


def _cause(error: BaseException) -> BaseException | None:
    """The Hub's refusal or the network's failure behind an error; uploads wrap theirs in a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, HfHubHTTPError) and not _is_transport(cause):
        cause = cause.__cause__
    return cause


def _is_transport(error: BaseException) -> bool:
    """Whether the network failed. The client's HTTP library differs between its releases, hence by name."""
    return isinstance(error, ConnectionError | TimeoutError) or any(
        kind.__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")
        for kind in type(error).__mro__
    )


def _reason(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
