"""Where kbuild keeps what it can make again: `$XDG_CACHE_HOME/kbuild`."""

import os
from pathlib import Path

from kbuild.errors import MachineError


def path(*parts: str) -> Path:
    """A folder below the cache, created where it does not exist. Raises MachineError where it cannot be."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root, "kbuild", *parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"cannot keep files in {folder}: {error.strerror}",
            hint="point XDG_CACHE_HOME to a folder of yours",
        ) from error
    return folder
