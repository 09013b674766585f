"""The only reader of `kbuild/data`, and the only one who knows where `kbuild/nix` lies."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """Path of one file or folder below `kbuild/data`, e.g. `"matrix.json"`."""
    return _PACKAGE / "data" / name


@cache
def data_json(name: str) -> Any:
    """The parsed JSON of one data file. Callers turn it into typed records at once and never mutate it."""
    return json.loads(data_path(name).read_text(encoding="utf-8"))


def data_files(name: str) -> Iterator[tuple[str, Path]]:
    """The files below one folder of `kbuild/data`, sorted: relative path with `/`, and where it lies.

    What Python writes beside scripts when a package is installed is no part of the data.
    """
    root = data_path(name)
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(root).as_posix(), path


def data_bytes(name: str) -> bytes:
    """The raw content of one data file."""
    return data_path(name).read_bytes()


def nix_path() -> Path:
    """The folder of the Nix library."""
    return _PACKAGE / "nix"


def package_path() -> Path:
    """The folder of the `kbuild` package itself (the Nix library takes single modules from it)."""
    return _PACKAGE
