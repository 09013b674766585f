"""Where kbuild keeps what it can make again: `$XDG_CACHE_HOME/kbuild`."""

import os
from pathlib import Path


def path(*parts: str) -> Path:
    """A folder below the cache, created where it does not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root, "kbuild", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
