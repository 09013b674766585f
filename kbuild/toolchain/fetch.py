"""Have pinned trees in the Nix store; what is missing is brought by `kbuild.toolchain.bring`."""

import errno
import fcntl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kbuild import cachedir
from kbuild.errors import MachineError
from kbuild.toolchain.lock import Lock, Wheel, load_lock, store_path
from kbuild.toolchain.store import Store

Locate = Callable[[Iterable[Wheel]], Mapping[Wheel, str]]


class Progress(Protocol):
    """Who wants to see a fetch happen; called from several threads."""

    def note(self, text: str) -> None: ...
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...


class Silent:
    """A progress that shows nothing."""

    def note(self, text: str) -> None: ...
    def begin(self, what: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a fetch cost, in bytes over the network and seconds, and where each key's tree lies."""

    bytes_received: int
    seconds: float
    paths: Mapping[str, str]


def ensure(
    keys: Sequence[str],
    *,
    nix: Store | None = None,
    progress: Progress | None = None,
    lock: Lock | None = None,
    cache: Path | None = None,
    locate: Locate | None = None,
) -> Fetched:
    """Have the trees of these keys in the store; those that are there already cost one look.

    Interrupted, it goes on next time where it stopped. Raises UsageError for an unknown key, HubError where
    the index or network fails or serves other bytes than pinned, MachineError where this machine fails.
    """
    started = time.monotonic()
    nix, progress, cache = nix or Store(), progress or Silent(), cache or cachedir.path()
    trees = (lock or load_lock()).select(keys)
    received = 0
    absent = nix.missing(trees)
    if absent:
        from kbuild.toolchain.bring import bring

        with _disk_errors(cache), _exclusive(cache, progress):
            # Another process may have brought them while we waited for it.
            received = bring(nix.missing(absent), nix, progress, cache, locate)
    for tree in trees:
        root = cache / "roots" / tree.key
        if tree in absent or not root.is_symlink() or str(root.readlink()) != store_path(tree):
            nix.keep(store_path(tree), root)
    return Fetched(
        bytes_received=received,
        seconds=time.monotonic() - started,
        paths={tree.key: store_path(tree) for tree in trees},
    )


@contextmanager
def _exclusive(cache: Path, progress: Progress) -> Iterator[None]:
    """Let one process at a time fetch into a cache folder."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("Waiting for another kbuild that is fetching the toolchain")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineError(
                f"the disk of {cache} is full; what was fetched stays and is used next time.",
                hint="Free space, or set XDG_CACHE_HOME to a folder on a larger disk.",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise MachineError(
                f"{error.filename or cache}: {error.strerror}",
                hint="Set XDG_CACHE_HOME to a folder you can write.",
            ) from error
        raise
