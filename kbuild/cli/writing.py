"""Replacing a file of the user's in one step."""

import os
import tempfile
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that an interruption leaves the old content whole; links and mode are kept."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(name).chmod(target.stat().st_mode & 0o7777)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
