"""`kbuild doctor`: what this machine has and lacks, each with the fix."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

from kbuild import cachedir, host, machine, nixcmd, process
from kbuild.errors import ExitCode, KbuildError
from kbuild.toolchain import load_lock
from kbuild.toolchain.store import Store

# One PyTorch's headers and one CUDA toolkit take 0.4 GB in the store, a whole matrix with its objects about 3 GB.
_ROOM = 3 << 30
# Any of these makes the kernels client send a header that its own HTTP library refuses (kernels 0.13 and 0.17).
_BREAKS_LOADING = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK")


class State(StrEnum):
    """`missing` stops builds; `note` is worth knowing."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line: what was looked at, what was found, and what to do about it."""

    subject: str
    state: State
    found: str
    fix: str | None = None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what this machine has and lacks for building and publishing kernels, each with the fix."""
    findings = [finding for look in _LOOKS for finding in look()]
    if as_json:
        rows = [
            {"subject": f.subject, "state": f.state.value, "found": f.found, "fix": f.fix} for f in findings
        ]
        click.echo(json.dumps({"version": 1, "findings": rows}, indent=2))
    else:
        width = max(len(f.subject) for f in findings)
        for f in findings:
            click.echo(f"{f.subject:{width}}  {f.state:7}  {f.found}")
            if f.fix is not None:
                click.echo(f"{'':{width}}           {f.fix}")
    missing = any(f.state is State.MISSING for f in findings)
    ctx.exit(ExitCode.ENVIRONMENT if missing else ExitCode.OK)


def _attempt(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject=subject, state=State.OK, found=look())
    except KbuildError as error:
        return Finding(subject=subject, state=State.MISSING, found=error.message, fix=error.hint)


def _nix() -> Iterator[Finding]:
    yield _attempt("Nix", lambda: ".".join(map(str, nixcmd.probe().version)))


def _compiler() -> Iterator[Finding]:
    yield _attempt("C++ compiler", lambda: host.detect().compiler)


def _sandbox() -> Iterator[Finding]:
    def build() -> str:
        nixcmd.probe().try_sandbox(host.detect())
        return "a build ran in it"

    yield _attempt("build sandbox", build)


def _trees() -> Iterator[Finding]:
    if process.which("nix-store") is None:
        return
    trees = load_lock().trees.values()
    try:
        missing = Store().missing(trees)
    except KbuildError as error:
        yield Finding(subject="toolchain", state=State.MISSING, found=error.message, fix=error.hint)
        return
    found = f"{len(trees) - len(missing)} of {len(trees)} pinned trees are in the store"
    fix = "kbuild lock fetch --all (a build fetches what it needs by itself)" if missing else None
    yield Finding(subject="toolchain", state=State.NOTE if missing else State.OK, found=found, fix=fix)


def _disk() -> Iterator[Finding]:
    for subject, folder in (
        ("disk of the store", Path("/nix/store")),
        ("disk of the cache", cachedir.path()),
    ):
        if folder.exists():
            free = shutil.disk_usage(folder).free
            short = free < _ROOM
            yield Finding(
                subject=subject,
                state=State.NOTE if short else State.OK,
                found=f"{free / (1 << 30):.1f} GiB free",
                fix="nix-collect-garbage frees what no build needs" if short else None,
            )


def _torch() -> Iterator[Finding]:
    here = machine.installed_torch()
    if here is None:
        fix = "only `kbuild build` without --variant and `kbuild publish --verify` look for one"
        yield Finding(subject="PyTorch", state=State.NOTE, found="none", fix=fix)
    else:
        cuda = f"CUDA {here.cuda}" if here.cuda else "CPU"
        yield Finding(subject="PyTorch", state=State.OK, found=f"{here.torch} ({cuda}) in {here.python}")


def _gpu() -> Iterator[Finding]:
    if process.which("nvidia-smi") is None:
        yield Finding(subject="GPU", state=State.NOTE, found="none; building needs none")
        return
    done = process.run(["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"])
    state = State.OK if done.ok else State.NOTE
    yield Finding(
        subject="GPU", state=state, found=(done.stdout or done.stderr).strip() or "nvidia-smi fails"
    )


def _hub() -> Iterator[Finding]:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    file = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    endpoint = os.environ.get("HF_ENDPOINT")
    where = "HF_TOKEN" if os.environ.get("HF_TOKEN") else str(file) if file.exists() else None
    yield Finding(
        subject="Hub login",
        state=State.NOTE if where is None else State.OK,
        found="no token"
        if where is None
        else f"a token from {where}" + (f" for {endpoint}" if endpoint else ""),
        fix="hf auth login (publishing needs it)" if where is None else None,
    )
    for name in _BREAKS_LOADING:
        if os.environ.get(name):
            fix = f"unset {name} where kernels are loaded"
            yield Finding(subject=name, state=State.NOTE, found="makes get_kernel fail", fix=fix)


_LOOKS = (_nix, _compiler, _sandbox, _trees, _disk, _torch, _gpu, _hub)
