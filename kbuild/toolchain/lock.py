"""The pinned toolchain: which wheel each tree is kept of, and the hash that proves the tree."""

import hashlib
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from kbuild.errors import UsageError
from kbuild.resources import data_json
from kbuild.text import did_you_mean

LOCK_FILE = "toolchain.lock.json"
STORE_DIR = "/nix/store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One file of a package index; `sha256` is hexadecimal, `size` in bytes."""

    project: str
    version: str
    file: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What is kept of one wheel, under `store_name` in the Nix store.

    `keep` are globs over the wheel's member names, `strip` is cut from the front of those kept, and
    `executable` are globs over what remains; `*` and `**` both cross slashes. `nar_hash` is an SRI string,
    `nar_size` the length of the serialisation in bytes, `files` the number of files.
    """

    key: str
    store_name: str
    nar_hash: str
    nar_size: int
    files: int
    wheel: Wheel
    keep: tuple[str, ...]
    strip: str
    executable: tuple[str, ...]

    def kept(self, member: str) -> str | None:
        """Where a member of the wheel goes inside the tree; None if it is dropped.

        Raises ValueError for a name that would leave the tree.
        """
        if member.endswith("/") or not any(fnmatchcase(member, glob) for glob in self.keep):
            return None
        path = PurePosixPath(member)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{self.wheel.file}: member {member!r} leaves the tree")
        return str(path.relative_to(self.strip))

    def is_executable(self, path: str) -> bool:
        return any(fnmatchcase(path, glob) for glob in self.executable)

    def as_json(self) -> dict[str, Any]:
        wheel = self.wheel
        return {
            "store_name": self.store_name,
            "nar_hash": self.nar_hash,
            "nar_size": self.nar_size,
            "files": self.files,
            "wheel": {
                "project": wheel.project,
                "version": wheel.version,
                "file": wheel.file,
                "size": wheel.size,
                "sha256": wheel.sha256,
            },
            "keep": list(self.keep),
            "strip": self.strip,
            "executable": list(self.executable),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """All pinned trees, by the keys that the matrix uses."""

    trees: Mapping[str, Tree]

    def select(self, keys: Iterable[str]) -> tuple[Tree, ...]:
        """The trees of these keys, each once, in the order given. Raises UsageError for an unknown key."""
        selected: dict[str, Tree] = {}
        for key in keys:
            if key not in self.trees:
                raise UsageError(
                    f"no toolchain tree is called {key!r}.{did_you_mean(key, self.trees)}",
                    hint="`kbuild lock list` names them all.",
                )
            selected[key] = self.trees[key]
        return tuple(selected.values())

    def as_json(self) -> dict[str, Any]:
        return {"version": 1, "trees": {key: tree.as_json() for key, tree in self.trees.items()}}


def parse_lock(document: Any) -> Lock:
    """Turn the JSON document into records. Raises ValueError for a version other than 1."""
    if document["version"] != 1:
        raise ValueError(f"{LOCK_FILE}: version {document['version']} is not known")
    return Lock(
        trees=MappingProxyType({key: _parse_tree(key, entry) for key, entry in document["trees"].items()})
    )


def _parse_tree(key: str, entry: Any) -> Tree:
    return Tree(
        key=key,
        store_name=entry["store_name"],
        nar_hash=entry["nar_hash"],
        nar_size=entry["nar_size"],
        files=entry["files"],
        wheel=Wheel(**entry["wheel"]),
        keep=tuple(entry["keep"]),
        strip=entry["strip"],
        executable=tuple(entry["executable"]),
    )


@cache
def load_lock() -> Lock:
    """The lock that this kbuild was released with."""
    return parse_lock(data_json(LOCK_FILE))


def store_path(tree: Tree, store_dir: str = STORE_DIR) -> str:
    """Where a tree lies in the Nix store: what `nix-store --print-fixed-path` says, computed without Nix."""
    inner = b64decode(tree.nar_hash.removeprefix("sha256-")).hex()
    fingerprint = f"source:sha256:{inner}:{store_dir}:{tree.store_name}"
    digest = hashlib.sha256(fingerprint.encode()).digest()
    # Nix folds the digest to 160 bits and writes it in its own base 32, last bits first.
    folded = bytearray(20)
    for index, byte in enumerate(digest):
        folded[index % 20] ^= byte
    number = int.from_bytes(folded, "little")
    alphabet = "0123456789abcdfghijklmnpqrsvwxyz"
    name = "".join(alphabet[number >> 5 * index & 31] for index in reversed(range(32)))
    return f"{store_dir}/{name}-{tree.store_name}"
