"""Repositories, refs and commits in one SQLite database; a commit is there in whole or not at all."""

import json
import re
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kbuild.localhub.gitids import File, commit_oid, tree_oids

DATABASE = "hub.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS repos (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, private INTEGER NOT NULL,
    created INTEGER NOT NULL, UNIQUE (kind, name)
);
CREATE TABLE IF NOT EXISTS refs (
    repo INTEGER NOT NULL REFERENCES repos ON DELETE CASCADE, name TEXT NOT NULL, oid TEXT NOT NULL,
    PRIMARY KEY (repo, name)
);
CREATE TABLE IF NOT EXISTS commits (
    repo INTEGER NOT NULL REFERENCES repos ON DELETE CASCADE, oid TEXT NOT NULL, parent TEXT,
    author TEXT NOT NULL, time INTEGER NOT NULL, title TEXT NOT NULL, body TEXT NOT NULL, files TEXT NOT NULL,
    PRIMARY KEY (repo, oid)
);
"""
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?")
_BRANCH = re.compile(
    r"(?!refs/|.*(?://|\.\.|\.lock(?:/|$)|@\{))[^\x00-\x20\x7f~^:?*\[\\/.-][^\x00-\x20\x7f~^:?*\[\\]*(?<![/.])"
)


class RefusalError(Exception):
    """The request is answered with an error; `code` is the Hub's own name for it, where it has one."""

    def __init__(self, status: int, message: str, *, code: str | None = None, url: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.url = url


class Kind(StrEnum):
    """The types of repository that are served."""

    MODEL = "model"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repo:
    """One repository; `name` is `namespace/name`."""

    id: int
    kind: Kind
    name: str
    private: bool
    created: int

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit with the whole tree it stands for."""

    oid: str
    parent: str | None
    author: str
    time: int
    title: str
    body: str
    files: Mapping[str, File]


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A file to add or replace."""

    path: str
    file: File


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """A file to delete, or a whole folder."""

    path: str
    folder: bool = False


Change = Put | Remove


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Who commits what, in words."""

    author: str
    title: str
    body: str = ""


class Store:
    """All state of a Hub but the contents. Safe to share between threads and to kill at any moment."""

    def __init__(self, root: Path, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._db = sqlite3.connect(root / DATABASE, isolation_level=None, check_same_thread=False, timeout=60)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA foreign_keys=ON")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def secret(self) -> bytes:
        """A key for signed addresses; it outlives a restart, so uploads under way go on."""
        with self._writing():
            self._db.execute("INSERT OR IGNORE INTO settings VALUES ('secret', ?)", (secrets.token_hex(32),))
            row = self._db.execute("SELECT value FROM settings WHERE name = 'secret'").fetchone()
            return bytes.fromhex(row[0])

    # Repositories

    def create_repo(
        self, kind: Kind, name: str, *, private: bool, initial: Sequence[Put], message: Message
    ) -> Repo:
        for part in name.split("/"):
            if _NAME.fullmatch(part) is None:
                raise RefusalError(400, f"{part!r} is not a valid name")
        with self._writing():
            try:
                self._db.execute(
                    "INSERT INTO repos (kind, name, private, created) VALUES (?, ?, ?, ?)",
                    (str(kind), name, int(private), int(self._clock())),
                )
            except sqlite3.IntegrityError:
                raise RefusalError(409, f"You already created this {kind} repo: {name}") from None
            repo = self.repo(kind, name)
            files = {put.path: put.file for put in initial}
            self._set_ref(repo, "refs/heads/main", self._insert(repo, None, files, message))
            return repo

    def delete_repo(self, repo: Repo) -> None:
        with self._writing():
            self._db.execute("DELETE FROM repos WHERE id = ?", (repo.id,))

    def repo(self, kind: Kind, name: str) -> Repo:
        with self._lock:
            row = self._db.execute(
                "SELECT id, private, created FROM repos WHERE kind = ? AND name = ?", (str(kind), name)
            ).fetchone()
        if row is None:
            raise RefusalError(404, "Repository not found", code="RepoNotFound")
        return Repo(id=row[0], kind=kind, name=name, private=bool(row[1]), created=row[2])

    # Refs

    def refs(self, repo: Repo) -> dict[str, str]:
        """Full name of every ref -> commit."""
        with self._lock:
            return dict(
                self._db.execute("SELECT name, oid FROM refs WHERE repo = ? ORDER BY name", (repo.id,))
            )

    def resolve(self, repo: Repo, revision: str) -> Commit:
        """The commit of a ref, branch, tag, or (abbreviated) commit id."""
        with self._lock:
            refs = self.refs(repo)
            for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
                if name in refs:
                    return self._commit(repo, refs[name])
            if re.fullmatch(r"[0-9a-f]{7,40}", revision):
                rows = self._db.execute(
                    "SELECT oid FROM commits WHERE repo = ? AND oid >= ? AND oid < ? LIMIT 2",
                    (repo.id, revision, f"{revision}g"),
                ).fetchall()
                if len(rows) == 1:
                    return self._commit(repo, rows[0][0])
        raise RefusalError(404, f"Invalid rev id: {revision}", code="RevisionNotFound")

    def create_ref(self, repo: Repo, kind: str, name: str, revision: str) -> None:
        """A branch (`kind` "heads") or a tag (`kind` "tags")."""
        if _BRANCH.fullmatch(name) is None:
            raise RefusalError(400, f"Invalid reference name: {name}")
        with self._writing():
            oid = self.resolve(repo, revision).oid
            try:
                self._db.execute("INSERT INTO refs VALUES (?, ?, ?)", (repo.id, f"refs/{kind}/{name}", oid))
            except sqlite3.IntegrityError:
                raise RefusalError(409, f"Reference already exists: refs/{kind}/{name}") from None

    def delete_ref(self, repo: Repo, kind: str, name: str) -> None:
        if (kind, name) == ("heads", "main"):
            raise RefusalError(403, "The main branch cannot be deleted")
        with self._writing():
            found = self._db.execute(
                "DELETE FROM refs WHERE repo = ? AND name = ?", (repo.id, f"refs/{kind}/{name}")
            )
            if found.rowcount == 0:
                raise RefusalError(404, f"No such reference: {name}", code="RevisionNotFound")

    # Commits

    def history(self, repo: Repo, revision: str) -> Iterator[Commit]:
        """The commit and its ancestors, newest first."""
        commit = self.resolve(repo, revision)
        while True:
            yield commit
            if commit.parent is None:
                return
            with self._lock:
                commit = self._commit(repo, commit.parent)

    def commit(
        self, repo: Repo, revision: str, changes: Sequence[Change], message: Message, *, parent: str | None
    ) -> Commit:
        """Add a commit to a branch or pull request. `parent`, where given, must be its tip (else 412)."""
        with self._writing():
            refs = self.refs(repo)
            ref = next((name for name in (f"refs/heads/{revision}", revision) if name in refs), None)
            if ref is None or ref.startswith("refs/tags/"):
                raise RefusalError(404, f"Invalid rev id: {revision}", code="RevisionNotFound")
            oid = self._append(repo, refs[ref], changes, message, parent=parent)
            self._set_ref(repo, ref, oid)
            return self._commit(repo, oid)

    def open_pull(
        self, repo: Repo, revision: str, changes: Sequence[Change], message: Message, *, parent: str | None
    ) -> tuple[int, Commit]:
        """Add a commit on top of a branch as a new pull request; its number."""
        with self._writing():
            refs = self.refs(repo)
            tip = refs.get(f"refs/heads/{revision}", refs.get(revision))
            if tip is None:
                raise RefusalError(404, f"Invalid rev id: {revision}", code="RevisionNotFound")
            oid = self._append(repo, tip, changes, message, parent=parent)
            number = 1 + max(
                (int(n.removeprefix("refs/pr/")) for n in refs if n.startswith("refs/pr/")), default=0
            )
            self._set_ref(repo, f"refs/pr/{number}", oid)
            return number, self._commit(repo, oid)

    def _append(
        self, repo: Repo, tip: str, changes: Sequence[Change], message: Message, *, parent: str | None
    ) -> str:
        if parent is not None and parent != tip:
            raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
        return self._insert(repo, tip, changed(self._commit(repo, tip).files, changes), message)

    def _insert(self, repo: Repo, parent: str | None, files: Mapping[str, File], message: Message) -> str:
        time = int(self._clock())
        text = f"{message.title}\n\n{message.body}" if message.body else message.title
        oid = commit_oid(
            tree=tree_oids(files)[""],
            parents=() if parent is None else (parent,),
            author=message.author,
            time=time,
            message=text,
        )
        manifest = json.dumps({path: [f.oid, f.size, f.sha256, f.lfs] for path, f in sorted(files.items())})
        # NB: the same change on the same parent within one second is the same commit.
        self._db.execute(
            "INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (repo.id, oid, parent, message.author, time, message.title, message.body, manifest),
        )
        return oid

    def _commit(self, repo: Repo, oid: str) -> Commit:
        row = self._db.execute(
            "SELECT parent, author, time, title, body, files FROM commits WHERE repo = ? AND oid = ?",
            (repo.id, oid),
        ).fetchone()
        files = {
            path: File(oid=entry[0], size=entry[1], sha256=entry[2], lfs=entry[3])
            for path, entry in json.loads(row[5]).items()
        }
        return Commit(
            oid=oid, parent=row[0], author=row[1], time=row[2], title=row[3], body=row[4], files=files
        )

    def _set_ref(self, repo: Repo, name: str, oid: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO refs VALUES (?, ?, ?)", (repo.id, name, oid))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def changed(files: Mapping[str, File], changes: Sequence[Change]) -> dict[str, File]:
    """The tree after these changes, in their order. Raises RefusalError where they do not make one."""
    result = dict(files)
    for change in changes:
        match change:
            case Put():
                check_path(change.path)
                result[change.path] = change.file
            case Remove(folder=False):
                if result.pop(change.path, None) is None:
                    raise RefusalError(
                        404, f"A file with this name doesn't exist: {change.path}", code="EntryNotFound"
                    )
            case Remove(folder=True):
                inside = [path for path in result if path.startswith(change.path.rstrip("/") + "/")]
                if not inside:
                    raise RefusalError(
                        404, f"A folder with this name doesn't exist: {change.path}", code="EntryNotFound"
                    )
                for path in inside:
                    del result[path]
    for path in result:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in result:
                raise RefusalError(400, f"{'/'.join(parts[:depth])} cannot be both a file and a folder")
    return result


def check_path(path: str) -> None:
    """A path inside a repository: relative, no empty, dot or `.git` segments, no control characters."""
    segments = path.split("/")
    if (
        any(segment in ("", ".", "..") or segment.lower() == ".git" for segment in segments)
        or "\\" in path
        or any(ord(character) < 32 or ord(character) == 127 for character in path)
        or len(path.encode("utf-8", "replace")) > 4096
    ):
        raise RefusalError(400, f"Invalid path: {path!r}")
