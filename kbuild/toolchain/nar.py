"""Nix's archive format, as far as its hash is needed: regular files, run bits, directories.

The format is given in E. Dolstra's thesis, "The Purely Functional Software Deployment Model", figure 5.2.
"""

import hashlib
import os
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Nar:
    """The hash (SRI) and the length in bytes of a serialisation, and how many files it holds."""

    hash: str
    size: int
    files: int


def nar_of(path: Path) -> Nar:
    """Serialise a file or folder. Raises ValueError for anything but regular files and folders."""
    digest = hashlib.sha256()
    size = files = 0

    def emit(data: bytes) -> None:
        nonlocal size
        digest.update(data)
        size += len(data)

    emit(_string(b"nix-archive-1"))
    files = _node(path, emit)
    return Nar(hash=f"sha256-{b64encode(digest.digest()).decode()}", size=size, files=files)


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data + bytes(-len(data) % 8)


def _node(path: Path, emit: Callable[[bytes], None]) -> int:
    emit(_string(b"(") + _string(b"type"))
    files = 0
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path}: neither a regular file nor a folder")
    if path.is_dir():
        emit(_string(b"directory"))
        for entry in sorted(path.iterdir(), key=os.fsencode):
            name = os.fsencode(entry.name)
            emit(_string(b"entry") + _string(b"(") + _string(b"name") + _string(name) + _string(b"node"))
            files += _node(entry, emit)
            emit(_string(b")"))
    else:
        files = 1
        emit(_string(b"regular"))
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_mode & 0o100:
                emit(_string(b"executable") + _string(b""))
            emit(_string(b"contents") + status.st_size.to_bytes(8, "little"))
            while chunk := stream.read(_CHUNK):
                emit(chunk)
            emit(bytes(-status.st_size % 8))
    emit(_string(b")"))
    return files
