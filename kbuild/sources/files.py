"""Which files of a project a build sees, as pure path arithmetic and directory reading."""

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kbuild.config.model import Config

CONFIG_NAME = "build.toml"
COMPILED = (".c", ".cc", ".cpp", ".cxx", ".cu", ".hip", ".m", ".mm", ".metal")
HEADERS = (".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inl", ".inc", ".ipp", ".tpp", ".txx", ".def")

# The public builder has this folder on every include path.
IMPLICIT_INCLUDE = "csrc"
# Files at the root that a build or a release reads besides the sources.
ROOT_FILES = (CONFIG_NAME, "CARD.md", "flake.nix", "flake.lock")
# Written into the package by builders for work in place; every build makes its own.
_GENERATED = ("_ops.py",)
_BYTECODE = (".pyc", ".pyo")


def inside(written: str) -> str | None:
    """The path normalised and relative to the root, or None where it leaves the project."""
    if written.startswith("/"):
        return None
    path = posixpath.normpath(written)
    return None if path == ".." or path.startswith("../") else path


def is_source(path: str) -> bool:
    """Whether the name is that of a compiled file or a header."""
    return path.endswith(COMPILED + HEADERS)


def is_inside_file(root: Path, path: str) -> bool:
    """Whether it is a regular file, and still below the root with links followed."""
    full = root / path
    return full.is_file() and full.resolve().is_relative_to(root)


def linked_parent(root: Path, path: str) -> str | None:
    """The outermost folder on the way to a file that is a link: git tracks nothing behind one."""
    return next((parent for parent in _parents(path) if (root / parent).is_symlink()), None)


def submodule(root: Path, path: str) -> str | None:
    """The submodule that a file lies in: a folder with a `.git` of its own."""
    return next((parent for parent in _parents(path) if (root / parent / ".git").exists()), None)


def _parents(path: str) -> list[str]:
    """The folders above a file, outermost first, without the root."""
    return [str(parent) for parent in reversed(PurePosixPath(path).parents) if str(parent) != "."]


def folders(config: Config) -> tuple[str, ...]:
    """The folders that go to a build by extension or whole, besides what `src` lists."""
    return (config.framework.folder, "tests", "benchmarks")


def candidates(root: Path, config: Config) -> Iterator[str]:
    """What a build reads where it exists; a path may come more than once."""
    yield from ROOT_FILES
    for written in config.listed_files:
        path = inside(written)
        if path is not None:
            yield path
    extensions = tuple(f".{extension}" for extension in config.framework.pyext)
    for folder in (config.framework.folder, "tests"):
        yield from (path for path in walk(root, folder) if path.endswith(extensions))
    yield from walk(root, "benchmarks")


def walk_all(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` of a folder that may be missing. Raises OSError for what cannot be listed."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    return os.walk(folder, onerror=refuse)


def walk(root: Path, folder: str) -> Iterator[str]:
    """Files below a folder, sorted, without bytecode and generated files; linked folders are not entered."""
    for parent, children, names in walk_all(root / folder):
        children[:] = sorted(name for name in children if name != "__pycache__")
        relative = Path(parent).relative_to(root).as_posix()
        for name in sorted(names):
            if not name.endswith(_BYTECODE) and name not in _GENERATED:
                yield f"{relative}/{name}"
