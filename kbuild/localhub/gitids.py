"""Object ids as git computes them, so that a repository can be exported to git unchanged."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a commit: `oid` is git's (of the pointer, if `lfs`), `size` and `sha256` the content's."""

    oid: str
    size: int
    sha256: str
    lfs: bool


def pointer(sha256: str, size: int) -> bytes:
    """What git stores in place of a file kept by LFS."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def blob_oid(content: bytes) -> str:
    return _oid("blob", content)


def tree_oids(files: Mapping[str, File]) -> dict[str, str]:
    """The id of every folder that holds something, by path; the root is the empty path."""
    folders: dict[str, list[tuple[bytes, bytes]]] = {"": []}
    for path in files:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folders.setdefault("/".join(parts[:depth]), [])
    for path, file in files.items():
        parent, _, name = path.rpartition("/")
        folders[parent].append((name.encode(), _entry("100644", name, file.oid)))
    oids: dict[str, str] = {}
    for folder in sorted(folders, key=lambda path: path.count("/") + bool(path), reverse=True):
        # NB: git sorts a folder as if its name ended in a slash.
        content = b"".join(entry for _, entry in sorted(folders[folder]))
        oids[folder] = _oid("tree", content)
        if folder:
            parent, _, name = folder.rpartition("/")
            folders[parent].append((f"{name}/".encode(), _entry("40000", name, oids[folder])))
    return oids


def commit_oid(*, tree: str, parents: Sequence[str], author: str, time: int, message: str) -> str:
    """`time` in seconds; the author is committer too."""
    who = f"{author} <{author}@localhost> {time} +0000"
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {who}", f"committer {who}"]
    return _oid("commit", ("\n".join(lines) + f"\n\n{message}").encode())


def _entry(mode: str, name: str, oid: str) -> bytes:
    return f"{mode} {name}\0".encode() + bytes.fromhex(oid)


def _oid(kind: str, content: bytes) -> str:
    digest = hashlib.sha1(f"{kind} {len(content)}\0".encode(), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()
