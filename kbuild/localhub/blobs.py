"""Contents by their sha256, on disk before anybody is told that they are."""

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """Files `blobs/ab/<sha256>`; what is being received lies in `incoming/` of the same file system."""

    def __init__(self, root: Path) -> None:
        self._blobs = root / "blobs"
        self._incoming = root / "incoming"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._incoming.mkdir(exist_ok=True)
        for leftover in self._incoming.iterdir():
            leftover.unlink()

    def path(self, sha256: str) -> Path:
        if _SHA256.fullmatch(sha256) is None:
            raise ValueError(sha256)
        return self._blobs / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def part_path(self, upload: str, number: int) -> Path:
        """Where one part of a multipart upload waits for the others."""
        return self._incoming / f"{upload}-{number}"

    def receive(self) -> "Incoming":
        """A writer for a new content."""
        return Incoming(self, self._incoming / secrets.token_hex(16))

    @contextmanager
    def batch(self) -> Iterator[Callable[[bytes], str]]:
        """A function that takes small contents and gives their sha256; all are kept when the block ends well."""
        waiting: dict[str, Path] = {}

        def put(content: bytes) -> str:
            sha256 = hashlib.sha256(content).hexdigest()
            if sha256 not in waiting and not self.has(sha256):
                waiting[sha256] = self._incoming / secrets.token_hex(16)
                waiting[sha256].write_bytes(content)
            return sha256

        try:
            yield put
            # NB: side by side, because a journal writes many waiting syncs at once.
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(_sync, waiting.values()))
            folders = {self.path(sha256).parent for sha256 in waiting}
            for folder in folders:
                folder.mkdir(exist_ok=True)
            for sha256, path in waiting.items():
                path.replace(self.path(sha256))
            for folder in (*folders, self._blobs):
                _sync(folder)
        finally:
            for path in waiting.values():
                path.unlink(missing_ok=True)

    def put(self, content: bytes) -> str:
        """Keep one content; its sha256."""
        with self.batch() as put:
            return put(content)


class Incoming:
    """A content on its way in: written, then kept under its hash or under a name of its own, or dropped."""

    def __init__(self, blobs: Blobs, path: Path) -> None:
        self._blobs = blobs
        self._path = path
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)
        self.size += len(content)

    def keep(self) -> str:
        """Make it durable under its hash."""
        if not self._blobs.has(self.sha256):
            self.keep_as(self._blobs.path(self.sha256))
        return self.sha256

    def keep_as(self, target: Path) -> None:
        """Make it durable under this path: content first, then the name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if not target.parent.is_dir():
            target.parent.mkdir(exist_ok=True)
            _sync(target.parent.parent)
        self._path.replace(target)
        _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
