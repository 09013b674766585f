"""What publishing would change, as a value: computed from a build tree and the Hub's listings, nothing else."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from kbuild.hub.tree import LocalFile

MAIN = "main"
# NB: rules of the Hub for files kept by LFS; it is on every repository, and clones are broken without it.
_ATTRIBUTES = ".gitattributes"


class RepoType(StrEnum):
    """The two types of repository that loaders read kernels from."""

    KERNEL = "kernel"
    MODEL = "model"

    @property
    def loaders(self) -> str:
        """Who can load from it, in words."""
        match self:
            case RepoType.KERNEL:
                return "`kernels` 0.14 and later load from it"
            case RepoType.MODEL:
                return "only `kernels` before 0.14 loads from it"
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on the Hub: git's id of it, and the sha256 of its content where it is kept by LFS."""

    path: str
    git_oid: str
    sha256: str | None

    def holds(self, file: LocalFile) -> bool:
        return self.git_oid == file.git_oid if self.sha256 is None else self.sha256 == file.sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBranch:
    """A branch at one commit. `pristine`: nothing was published on it since it was made."""

    name: str
    commit: str
    files: tuple[RemoteFile, ...]
    pristine: bool = False

    @property
    def variants(self) -> frozenset[str]:
        parts = (file.path.split("/") for file in self.files)
        return frozenset(part[1] for part in parts if part[0] == "build" and len(part) > 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPlan:
    """One commit on one branch, or none where nothing differs. `parent` is None while the branch is not there."""

    branch: str
    parent: str | None
    create: bool
    uploads: tuple[LocalFile, ...]
    deletions: tuple[str, ...]
    unchanged: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return bool(self.uploads or self.deletions)

    def as_json(self) -> dict[str, Any]:
        return {
            "branch": self.branch,
            "create": self.create,
            "parent": self.parent,
            "uploads": [
                {"path": file.path, "size": file.size, "sha256": file.sha256} for file in self.uploads
            ],
            "deletions": list(self.deletions),
            "unchanged": list(self.unchanged),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that publishing would do, in the order in which it would do it."""

    repo_id: str
    repo_type: RepoType
    create_repo: bool
    private: bool
    pull_request: bool
    branches: tuple[BranchPlan, ...]
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return self.create_repo or any(branch.changes or branch.create for branch in self.branches)

    def as_json(self) -> dict[str, Any]:
        return {
            "repository": self.repo_id,
            "repository_type": str(self.repo_type),
            "create_repository": self.create_repo,
            "private": self.private,
            "pull_request": self.pull_request,
            "branches": [branch.as_json() for branch in self.branches],
            "notes": list(self.notes),
        }

    def as_text(self) -> str:
        """Every step on a line of its own."""
        lines = [f"{self.repo_type} repository {self.repo_id} ({self.repo_type.loaders})"]
        if self.create_repo:
            lines.append(f"  create it, {'private' if self.private else 'public'}")
        for branch in self.branches:
            how = " in a pull request" if self.pull_request else ""
            lines.append(f"branch {branch.branch}{how}{' (to be created)' if branch.create else ''}")
            lines += [f"  upload  {file.path} ({_size(file.size)})" for file in branch.uploads]
            lines += [f"  delete  {path}" for path in branch.deletions]
            if branch.unchanged:
                lines.append(f"  {len(branch.unchanged)} file(s) are there already")
            if not branch.changes:
                lines.append("  nothing to commit")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def plan_build(
    branch: str, files: Iterable[LocalFile], remote: RemoteBranch | None, *, create: bool
) -> BranchPlan:
    """The commit that makes the published variants' folders, and benchmarks, on a branch equal to `files`.

    Other variants and files are left alone. A branch on which nothing was published yet starts with nothing
    else than what is published. `remote` is the branch, or what it will be created from (None: unknown yet).
    """
    local = {file.path: file for file in files}
    folders = {"/".join(path.split("/")[:2]) + "/" for path in local if path.startswith("build/")}

    benchmarks = any(map(is_benchmark, local))

    def stale(path: str) -> bool:
        if path in local:
            return False
        if create or (remote is not None and remote.pristine):
            return path != _ATTRIBUTES
        return any(path.startswith(folder) for folder in folders) or (benchmarks and is_benchmark(path))

    return _plan(branch, local, remote, create=create, stale=stale)


def is_benchmark(path: str) -> bool:
    """Whether `kernels benchmark` looks at this file of a repository, or of a project."""
    return re.fullmatch(r"benchmarks/benchmark[^/]*\.py", path) is not None


def plan_card(card: LocalFile, remote: RemoteBranch | None) -> BranchPlan:
    """The commit that puts the card on the main branch, where it differs."""
    return _plan(MAIN, {card.path: card}, remote, create=False, stale=lambda _: False)


def newest_version(branches: Iterable[str]) -> int | None:
    """The highest version among branch names, read as the loader does: `v` and a whole number."""
    versions = [
        int(name[1:]) for name in branches if name[:1] == "v" and name[1:].isascii() and name[1:].isdigit()
    ]
    return max(versions, default=None)


def _plan(
    branch: str,
    local: Mapping[str, LocalFile],
    remote: RemoteBranch | None,
    *,
    create: bool,
    stale: Callable[[str], bool],
) -> BranchPlan:
    present = {} if remote is None else {file.path: file for file in remote.files}
    same = {path for path, file in local.items() if path in present and present[path].holds(file)}
    return BranchPlan(
        branch=branch,
        parent=None if remote is None or create else remote.commit,
        create=create,
        uploads=tuple(local[path] for path in sorted(local.keys() - same)),
        deletions=tuple(path for path in sorted(present) if stale(path)),
        unchanged=tuple(sorted(same)),
    )


def _size(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
