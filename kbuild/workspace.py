"""The folders of a build: the flake that Nix evaluates, and `build/`, where results appear whole or not at all."""

import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbuild.errors import MachineError, UsageError
from kbuild.resources import nix_path, package_path

_FLAKE = """\
{
  inputs.kbuild.url = "path:/nowhere";
  outputs = { self, kbuild }: kbuild.lib.genKernelFlakeOutputs { inherit self; path = ./.; };
}
"""
_BUILDER = """\
{
  outputs = { self }: import ./kbuild/nix {
    package = ./kbuild;
    session = builtins.fromJSON (builtins.readFile ./session.json);
  };
}
"""
# Only what the Nix library reads: an edit elsewhere in kbuild changes nothing that is built.
_BUILDER_FILES = (
    "__init__.py",
    "errors.py",
    "metadata.py",
    "data/matrix.json",
    "data/cuda_archs.json",
    "data/toolchain.lock.json",
)
_INCOMING = ".incoming"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """`project` is a snapshot with a flake.nix, `builder` a flake that stands for its builder input."""

    project: Path
    builder: Path
    generated_flake: bool


@contextmanager
def workspace(root: Path, files: list[str], session: dict[str, Any]) -> Iterator[Workspace]:
    """Lay out a snapshot of exactly `files` (relative to `root`) and the builder flake; removed afterwards.

    Raises MachineError where there is no room for them.
    """
    with tempfile.TemporaryDirectory(
        prefix="kbuild-", dir=_temporary(), ignore_cleanup_errors=True
    ) as folder:
        project, builder = Path(folder, "project"), Path(folder, "builder")
        try:
            generated = _lay_out(root, files, session, project, builder)
        except OSError as error:  # shutil.Error is one too
            raise MachineError(
                f"cannot copy the project to {folder}: {_reason(error)}",
                hint="free space there, or set TMPDIR",
            ) from error
        yield Workspace(project=project, builder=builder, generated_flake=generated)


def _temporary() -> str | None:
    """Where to put it: the usual place, unless its name would need quoting in a flake's URL."""
    usual = tempfile.gettempdir()
    return None if re.fullmatch(r"[A-Za-z0-9/._-]+", usual) else "/tmp"  # noqa: S108  (made private by tempfile)


def _lay_out(root: Path, files: list[str], session: dict[str, Any], project: Path, builder: Path) -> bool:
    """Write both folders; True where the project got a flake.nix of ours."""
    for name in files:
        _copy(root / name, project / name)
    flake = project / "flake.nix"
    generated = not flake.exists()
    if generated:
        flake.write_text(_FLAKE)
    for name in _BUILDER_FILES:
        _copy(package_path() / name, builder / "kbuild" / name)
    for symbols in (package_path() / "data" / "abi").glob("*.symbols.xz"):
        _copy(symbols, builder / "kbuild" / "data" / "abi" / symbols.name)
    shutil.copytree(nix_path(), builder / "kbuild" / "nix", ignore=shutil.ignore_patterns("__pycache__"))
    (builder / "flake.nix").write_text(_BUILDER)
    (builder / "session.json").write_text(json.dumps(session))
    return generated


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _reason(error: OSError) -> str:
    """One sentence, also for the list of triples that shutil.Error carries."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][2])
    return error.strerror or str(error)


def builder_inputs(inputs: dict[str, str]) -> list[str]:
    """Which of a flake's inputs stand for the builder, by name or by URL. Raises UsageError where none does."""
    found = [
        name
        for name, url in inputs.items()
        if name in ("kbuild", "kernel-builder", "kernels") or "kernel-builder" in url or "/kbuild" in url
    ]
    if not found:
        raise UsageError(
            f"flake.nix has no input that stands for the builder (its inputs: {', '.join(inputs) or 'none'})",
            hint="name it `kbuild` or `kernel-builder`, or remove flake.nix: projects without one build too",
        )
    return found


@contextmanager
def build_folder(root: Path) -> Iterator["BuildFolder"]:
    """`root/build`, held by one process at a time; what an interrupted run left there is removed first."""
    folder = root / "build"
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{folder} is not a folder", hint="move it away: results go there") from None
    except OSError as error:
        raise MachineError(
            f"cannot make {folder}: {error.strerror}",
            hint="build a copy of the project that you can write to",
        ) from error
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another kbuild is writing to {folder}", hint="wait for it to end") from None
        _remove(folder / _INCOMING)
        yield BuildFolder(path=folder)
    finally:
        for empty in (folder / _INCOMING, folder):
            with suppress(OSError):
                empty.rmdir()  # only where nothing is left in it
        os.close(lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFolder:
    """`build/` while it is held."""

    path: Path

    def incoming(self, variant: str, source: Path) -> Path:
        """A writable copy of a result beside its final place; the user owns it. Raises MachineError on a full disk."""
        target = self.path / _INCOMING / variant
        try:
            shutil.copytree(source, target)
            for path in [target, *target.rglob("*")]:
                path.chmod(0o755 if path.is_dir() else 0o644)
        except OSError as error:  # shutil.Error is one too
            _remove(target)
            reason = _reason(error)
            hint = "see who owns build/" if "ermission" in reason else "free space and run again"
            raise MachineError(f"cannot write {target}: {reason}", hint=hint) from error
        return target

    def accept(self, variant: str, incoming: Path) -> None:
        """Put the copy in place of the previous result in one step."""
        final = self.path / variant
        _flush(incoming)
        if final.exists() or final.is_symlink():
            _exchange(incoming, final)
            _remove(incoming)
        else:
            incoming.rename(final)

    def discard(self, incoming: Path) -> None:
        _remove(incoming)


def _remove(path: Path) -> None:
    """Remove whatever is there, links themselves and not what they point to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def same_content(a: Path, b: Path) -> bool:
    """Whether two folders hold the same files with the same bytes."""

    def content(folder: Path) -> dict[str, bytes]:
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    return b.is_dir() and not b.is_symlink() and content(a) == content(b)


def _flush(folder: Path) -> None:
    """Make the files durable before the name is."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)


def _exchange(a: Path, b: Path) -> None:
    """Swap two names atomically (renameat2 with RENAME_EXCHANGE, Linux 3.15)."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, rename_exchange = -100, 2
    if libc.renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), rename_exchange) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), str(b))
    # A file system without the exchange: for a moment there is no variant, never a torn one.
    aside = a.with_name(f"{a.name}.old")
    b.rename(aside)
    a.rename(b)
    aside.rename(a)
