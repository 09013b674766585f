"""Where the wheels of the lock lie, as pip sees it: its configuration, indexes and folders decide, not we."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbuild import process
from kbuild.errors import HubError, MachineError
from kbuild.toolchain.lock import Wheel

Run = Callable[[Sequence[str]], process.Completed]

_PYTHON = "3.12"
_PIPS = 4
_PLATFORMS = tuple(
    f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "_2_12", "_2_5", "2014", "2010", "1")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One file pip would install, and its address (`https:` or `file:`); `sha256` where pip knows it."""

    project: str
    version: str
    url: str
    sha256: str | None

    @property
    def file(self) -> str:
        from urllib.parse import unquote, urlsplit

        return unquote(urlsplit(self.url).path.rpartition("/")[2])


# What pip's retries say of an index that does not answer; what it concludes afterwards is about versions.
_UNREACHED = re.compile(
    r"Connection refused|Name or service not known|Temporary failure in name resolution|Network is unreachable"
    r"|timed out|Cannot connect to proxy|certificate verify failed"
)


def locate(wheels: Iterable[Wheel], *, run: Run = process.run) -> Mapping[Wheel, str]:
    """The address of every pinned wheel that pip knows; one that pip answers with another file is left out.

    Raises HubError where pip finds nothing at all, MachineError where there is no pip.
    """
    from concurrent.futures import ThreadPoolExecutor

    def ask(batch: Sequence[Wheel]) -> tuple[Found, ...]:
        # NB: `===` compares strings, so that 2.13.0 does not stand for a local 2.13.0+cpu.
        return resolve([f"{wheel.project}==={wheel.version}" for wheel in batch], run=run)

    addresses: dict[Wheel, str] = {}
    batches = _one_version_per_project(wheels)
    with ThreadPoolExecutor(_PIPS) as pool:
        answers = list(pool.map(ask, batches))
    for batch, found in zip(batches, answers, strict=True):
        for wheel in batch:
            for file in found:
                if file.file == wheel.file and file.sha256 in (None, wheel.sha256):
                    addresses[wheel] = file.url
    return addresses


def _one_version_per_project(wheels: Iterable[Wheel]) -> list[list[Wheel]]:
    # pip resolves one version of a project at a time.
    batches: list[list[Wheel]] = []
    for wheel in wheels:
        for batch in batches:
            if all(other.project != wheel.project for other in batch):
                batch.append(wheel)
                break
        else:
            batches.append([wheel])
    return batches


def resolve(
    requirements: Sequence[str], *, dependencies: bool = False, run: Run = process.run
) -> tuple[Found, ...]:
    """What pip would install for these requirements on Linux x86_64, without downloading the wheels."""
    argv = [
        *pip(),
        "install",
        "--dry-run",
        "--quiet",
        # Read a wheel's metadata by ranges where the index does not serve it beside the wheel. Together with a
        # pip of 23.3 or later, which a dry run then satisfies, no wheel is downloaded just to learn its address.
        "--use-feature=fast-deps",
        "--report=-",
        "--ignore-installed",
        # Older pips want a target with foreign platforms; a dry run writes nothing there.
        "--target=kbuild-dry-run",
        *target_options(),
        *([] if dependencies else ["--no-deps"]),
        *requirements,
    ]
    done = run(argv)
    if not done.ok and (unreached := _UNREACHED.search(done.stderr)):
        raise HubError(
            f"the package index cannot be reached: pip says {unreached[0]!r} while it looks for {requirements[0]}",
            hint="check the network, and the index, proxy and certificates in `pip config list`",
        )
    if not done.ok:
        raise HubError(
            f"pip finds no {' '.join(requirements)}:\n{last_lines(done.stderr)}",
            hint="Check the network, and the index, proxy and certificates in `pip config list`.",
        )
    # pip's warnings about unusable local folders can precede the report on stdout.
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return tuple(_found(entry) for entry in report["install"])


def _found(entry: Any) -> Found:
    download = entry["download_info"]
    return Found(
        project=entry["metadata"]["name"],
        version=entry["metadata"]["version"],
        url=download["url"],
        sha256=download.get("archive_info", {}).get("hashes", {}).get("sha256"),
    )


def download_with_pip(wheel: Wheel, folder: Path, *, run: Run = process.run) -> Path:
    """Let pip bring exactly this file, whatever its index, credentials or proxies. Raises HubError."""
    requirements = folder / f"{wheel.file}.txt"
    requirements.write_text(f"{wheel.project}==={wheel.version} --hash=sha256:{wheel.sha256}\n")
    argv = [*pip(), "download", "--quiet", "--no-deps", f"--dest={folder}", *target_options()]
    try:
        done = run([*argv, "--require-hashes", f"--requirement={requirements}"])
    finally:
        requirements.unlink()
    path = folder / wheel.file
    if not done.ok or not path.is_file():
        raise HubError(
            f"pip cannot bring {wheel.file} (sha256 {wheel.sha256}):\n{last_lines(done.stderr)}",
            hint=f"Make an index or folder that pip searches offer the official file of "
            f"{wheel.project} {wheel.version}.",
        )
    return path


def pip() -> tuple[str, ...]:
    """How to call pip: that of this Python, else the one on PATH. Raises MachineError where there is none."""
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "--disable-pip-version-check")
    for name in ("pip3", "pip"):
        path = process.which(name)
        if path is not None:
            return (str(path), "--disable-pip-version-check")
    raise MachineError(
        "pip is not installed; kbuild asks it where the toolchain's wheels lie.",
        hint=f"{sys.executable} -m ensurepip, or install the package python3-pip.",
    )


def target_options() -> list[str]:
    """The options that make pip look for Linux x86_64 wheels, whatever machine it runs on."""
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    return ["--only-binary=:all:", f"--python-version={_PYTHON}", *platforms]


def last_lines(text: str, count: int = 6) -> str:
    """The end of a program's complaint, without pip's warnings about folders that it skips."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("WARNING: Location")]
    return "\n".join(f"  {line}" for line in lines[-count:])
