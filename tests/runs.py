"""kbuild as a process, for tests that look at what a person sees."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a run left: exit code and both streams."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        return json.loads(self.stdout)

    def statuses(self) -> dict[str, str]:
        """variant -> status of `kbuild build --json`."""
        return {entry["variant"]: entry["status"] for entry in self.json()["variants"]}


def kbuild(*arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Finished:
    """Run one command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "kbuild", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Finished(code=done.returncode, stdout=done.stdout, stderr=done.stderr)
