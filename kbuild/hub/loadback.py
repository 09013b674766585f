"""Loading back what was published, the way its users will: with `get_kernel`, from the Hub, into an empty cache."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kbuild import process
from kbuild.hub.plan import RepoType
from kbuild.metadata import verify_digest

# NB: runs in a process of its own, where nothing of kbuild need be importable.
_SCRIPT = """
import importlib.util, json, sys
def end(state, text):
    print(json.dumps([state, text]))
    raise SystemExit
repo_id, revision, repo_type = sys.argv[1:]
number = revision.removeprefix("v")
where = {"version": int(number)} if number != revision and number.isdigit() else {"revision": revision}
missing = [name for name in ("torch", "kernels") if importlib.util.find_spec(name) is None]
if missing:
    end("skipped", "this Python has no " + " and no ".join(missing))
from importlib.metadata import version
installed = tuple(int(part) for part in version("kernels").split(".")[:2])
if (installed >= (0, 14)) != (repo_type == "kernel"):
    end("skipped", f"kernels {version('kernels')} does not load from {repo_type} repositories")
import inspect
import kernels
trust = {"trust_remote_code": True} if "trust_remote_code" in inspect.signature(kernels.get_kernel).parameters else {}
try:
    module = kernels.get_kernel(repo_id, **where, **trust)
except FileNotFoundError as error:
    end("skipped", "no published variant fits this machine: " + str(error))
end("loaded", module.__file__)
"""


# The loader sends an empty user agent, which these turn into a header that its HTTP library refuses.
_BREAKING = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_OFFLINE")


class State(StrEnum):
    """How loading went; SKIPPED where this machine cannot tell."""

    LOADED = "loaded"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBack:
    """What loading came to: the variant that was loaded, or why none was."""

    state: State
    text: str


def load_back(
    repo_id: str,
    repo_type: RepoType,
    revision: str,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] = os.environ,
    runner: Callable[..., process.Completed] = process.run,
) -> LoadBack:
    """Load a branch or another revision with the `kernels` library of a Python, and check what it fetched."""
    for name in _BREAKING:
        if environment.get(name, "").lower() in ("1", "true", "yes", "on"):
            return LoadBack(state=State.SKIPPED, text=f"with {name} set, `kernels` cannot ask a Hub")
    with tempfile.TemporaryDirectory(prefix="kbuild-verify-") as cache:
        finished = runner(
            [python, "-c", _SCRIPT, repo_id, revision, str(repo_type)],
            env={**environment, "HF_HUB_CACHE": cache, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        )
        if not finished.ok:
            last = finished.stderr.strip().rpartition("\n")[2]
            return LoadBack(state=State.FAILED, text=last or f"exit status {finished.returncode}")
        state, text = json.loads(finished.stdout.splitlines()[-1])
        if state != State.LOADED:
            return LoadBack(state=State(state), text=text)
        snapshot, _, inside = text.rpartition("/build/")
        variant = inside.partition("/")[0]
        # The loader does not compare what it fetched with the digest.
        problems = verify_digest(Path(snapshot, "build", variant))
        if problems:
            return LoadBack(state=State.FAILED, text=f"{variant}: {'; '.join(problems)}")
        return LoadBack(state=State.LOADED, text=variant)
