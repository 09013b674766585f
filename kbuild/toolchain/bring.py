"""Bring trees into the Nix store, over the network only what is kept of each wheel."""

import shutil
import zipfile
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from kbuild.errors import HubError
from kbuild.toolchain import index, remote
from kbuild.toolchain.fetch import Locate, Progress
from kbuild.toolchain.lock import Tree, Wheel
from kbuild.toolchain.nar import nar_of
from kbuild.toolchain.store import Store
from kbuild.toolchain.unpack import (
    CorruptMemberError,
    Span,
    is_unpacked,
    members_of,
    plan_spans,
    prune,
    unpack,
    unpack_file,
)

T = TypeVar("T")

# A dropped member up to this size is cheaper to receive than another request (30 ms at 10 MB/s). Spans end
# where the next member would pass 16 MiB, so that eight connections share the large tools.
_GAP = 256 << 10
_LENGTH = 16 << 20
_CONNECTIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InParts:
    """A wheel on a server that serves ranges, and the spans still to bring."""

    tree: Tree
    url: str
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        return sum(span.end - span.start for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A wheel to bring whole: from a server, from this machine, or (no address) by pip."""

    tree: Tree
    url: str | None

    @property
    def size(self) -> int:
        return self.tree.wheel.size


def bring(
    trees: Sequence[Tree], nix: Store, progress: Progress, cache: Path, locate: Locate | None = None
) -> int:
    """Fetch, verify and add these trees; the bytes received. Raises HubError, MachineError, OSError."""
    if not trees:
        return 0
    progress.note(f"Looking up {len(trees)} wheels: {', '.join(tree.store_name for tree in trees)}")
    addresses = (locate or index.locate)([tree.wheel for tree in trees])
    by_pip = 0
    with (
        remote.Client(connections=_CONNECTIONS, on_receive=progress.advance) as client,
        ThreadPoolExecutor(_CONNECTIONS) as pool,
    ):
        plans = _all(
            client, [pool.submit(_plan, client, tree, addresses.get(tree.wheel), cache) for tree in trees]
        )
        progress.begin("toolchain", sum(plan.size for plan in plans))
        refused = _bring_parts(client, pool, [plan for plan in plans if isinstance(plan, InParts)], cache)
        for plan in plans:
            if isinstance(plan, Whole):
                by_pip += _bring_whole(client, plan, cache, progress)
            elif plan.tree in refused:
                by_pip += _bring_whole(client, Whole(tree=plan.tree, url=plan.url), cache, progress)
        received = client.received + by_pip
    for plan in plans:
        _finish(plan.tree, nix, cache)
        progress.note(f"{plan.tree.store_name}: verified and in the store")
    return received


def _plan(client: remote.Client, tree: Tree, url: str | None, cache: Path) -> InParts | Whole:
    if url is None or urlsplit(url).scheme == "file":
        return Whole(tree=tree, url=url)
    try:
        with remote.open_wheel(client, url, tree.wheel.size) as wheel:
            members = members_of(tree, wheel)
    except (remote.RangesRefusedError, zipfile.BadZipFile, CorruptMemberError):
        return Whole(tree=tree, url=url)
    root = _staging(tree, cache)
    prune(root, members)
    absent = [member for member in members if not is_unpacked(member, root)]
    return InParts(tree=tree, url=url, spans=plan_spans(absent, gap=_GAP, length=_LENGTH))


def _bring_parts(
    client: remote.Client, pool: Executor, plans: Sequence[InParts], cache: Path
) -> frozenset[Tree]:
    """Bring all spans; those trees whose server refuses ranges after all are returned."""
    jobs = [
        pool.submit(_bring_span, client, plan, span, _staging(plan.tree, cache))
        for plan in plans
        for span in plan.spans
    ]
    return frozenset(tree for tree in _all(client, jobs) if tree is not None)


def _bring_span(client: remote.Client, plan: InParts, span: Span, root: Path) -> Tree | None:
    todo = list(span.members)
    failures = 0
    while todo:
        try:
            with client.part(plan.url, todo[0].start, span.end, total=plan.tree.wheel.size) as body:
                while todo:
                    unpack(todo[0], body, root)
                    del todo[0]
                    failures = 0
        except remote.RangesRefusedError:
            return plan.tree
        except CorruptMemberError as error:
            raise _wrong_bytes(plan.tree, str(error)) from error
        except remote.BrokenTransferError as error:
            failures += 1
            if failures == remote.ATTEMPTS:
                raise remote.keeps_breaking(plan.url, error) from error
    return None


def _bring_whole(client: remote.Client, plan: Whole, cache: Path, progress: Progress) -> int:
    """Unpack a wheel that lies here or is brought here; the bytes that pip received for it."""
    tree, wheel = plan.tree, plan.tree.wheel
    if plan.url is not None and urlsplit(plan.url).scheme == "file":
        path = Path(unquote(urlsplit(plan.url).path))
        _check_whole(path, wheel)
        _unpack_whole(path, tree, cache)
        progress.advance(wheel.size)
        return 0
    folder = cache / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / wheel.file
    by_pip = 0
    if plan.url is None or not remote.download(client, plan.url, path, wheel.size):
        progress.note(f"{wheel.file}: left to pip")
        path.unlink(missing_ok=True)
        index.download_with_pip(wheel, folder)
        by_pip = wheel.size
    try:
        _check_whole(path, wheel)
        _unpack_whole(path, tree, cache)
    finally:
        path.unlink()
    return by_pip


def _check_whole(path: Path, wheel: Wheel) -> None:
    with path.open("rb") as file:
        actual = file_digest(file, "sha256").hexdigest()
    if actual != wheel.sha256:
        raise HubError(
            f"{path}: sha256 is {actual}, the lock pins {wheel.sha256}. Nothing was added to the store.",
            hint=f"The index or folder that pip searches offers another {wheel.file} than the official one; "
            "put that right and run the same command again.",
        )


def _unpack_whole(path: Path, tree: Tree, cache: Path) -> None:
    try:
        unpack_file(path, tree, _staging(tree, cache))
    except (CorruptMemberError, EOFError, zipfile.BadZipFile) as error:
        raise _wrong_bytes(tree, str(error)) from error


def _finish(tree: Tree, nix: Store, cache: Path) -> None:
    root = _staging(tree, cache)
    nar = nar_of(root)
    if nar.hash != tree.nar_hash:
        shutil.rmtree(root.parent)
        raise _wrong_bytes(tree, f"expected {tree.nar_hash} of the tree kept, got {nar.hash}")
    nix.add(root, tree)
    shutil.rmtree(root.parent)


def _wrong_bytes(tree: Tree, detail: str) -> HubError:
    return HubError(
        f"{tree.wheel.file}: what the index serves is not what the lock pins: {detail}. "
        "Nothing was added to the store.",
        hint="Run the same command again; if it repeats, a proxy or mirror on the way alters the file.",
    )


def _staging(tree: Tree, cache: Path) -> Path:
    # The parent carries the hash, so that what another lock left behind is never taken for ours.
    digest = tree.nar_hash.removeprefix("sha256-")[:16].replace("/", "_").replace("+", "-")
    root = cache / "staging" / digest / tree.store_name
    root.mkdir(parents=True, exist_ok=True)
    return root


def _all(client: remote.Client, jobs: Sequence[Future[T]]) -> list[T]:
    """The results of all jobs; the first failure (or ctrl-C) stops the others before it propagates."""
    try:
        finished, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        for job in finished:
            job.result()
        return [job.result() for job in jobs]
    except BaseException:
        client.stop.set()
        for job in jobs:
            job.cancel()
        raise
