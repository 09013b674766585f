"""The compiler of this machine, as a value that the Nix build takes: where it lies and what exactly it is."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbuild import cachedir, process
from kbuild.errors import MachineError

# What the sandbox sees of the machine: the system's programs, libraries and headers; no /home, /root, /usr/local.
_SYSTEM_PATHS = (
    "/bin",
    "/lib",
    "/lib64",
    "/usr/bin",
    "/usr/include",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
)
_TOOLS = ("as", "ld", "collect2", "cc1plus", "cc1")
_LIBRARIES = (
    "libstdc++.so.6",
    "libstdc++.a",
    "libgcc.a",
    "libgcc_s.so.1",
    "crti.o",
    "crtbeginS.o",
    "libgomp.so.1",
)
# nvcc 13 refuses newer host compilers (CUDA installation guide, "Host Compiler Support Policy").
_NEWEST_GCC = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host toolchain. `identity` is part of every derivation: a digest of the compiler's binaries and headers."""

    compiler: str
    python: str
    shell: str
    path: str
    identity: str
    sandbox_paths: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "python": self.python,
            "shell": self.shell,
            "path": self.path,
            "identity": self.identity,
        }


def detect() -> Host:
    """Find and fingerprint the system's g++ and Python. Raises MachineError naming what is missing."""
    path = "/usr/bin:/bin"
    compiler = Path("/usr/bin/g++")
    if not compiler.exists():
        raise MachineError(
            "no C++ compiler: /usr/bin/g++ does not exist", hint="on Debian or Ubuntu: apt-get install g++"
        )
    version = _ask(compiler, "-dumpfullversion")
    if int(version.split(".")[0]) > _NEWEST_GCC:
        raise MachineError(
            f"g++ {version} is newer than nvcc takes (up to {_NEWEST_GCC})",
            hint="install g++-14 and make it g++",
        )
    python, extra = _python()
    files = [compiler, *(_program(compiler, tool) for tool in _TOOLS)]
    files += [_library(compiler, name) for name in _LIBRARIES]
    headers = _header_folders(compiler)
    identity = f"g++ {version} {_fingerprint([f for f in files if f is not None], headers)}"
    existing = [p for p in (*_SYSTEM_PATHS, *extra) if Path(p).exists()]
    return Host(  # noqa: S604  (a field named shell, not an argument of a subprocess)
        compiler=f"g++ {version}",
        python=python,
        shell="/bin/sh",
        path=path,
        identity=identity,
        sandbox_paths=tuple(existing),
    )


def jobs() -> int:
    """How many units to compile at once: one a core, as far as memory goes (nvcc takes up to 3 GiB)."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // (3 << 30)))


def threads() -> int:
    """How many of its capabilities one nvcc call compiles at once: a few, since most builds have several units."""
    return min(4, os.cpu_count() or 1)


def _ask(compiler: Path, *arguments: str) -> str:
    try:
        done = process.run([str(compiler), *arguments])
    except OSError as error:
        raise MachineError(f"{compiler} cannot be run: {error.strerror}", hint="reinstall g++") from error
    if not done.ok:
        raise MachineError(f"the C++ compiler does not run:\n{done.transcript()}")
    return done.stdout.strip()


def _python() -> tuple[str, tuple[str, ...]]:
    """The Python that runs build steps (3.11 or later), and what the sandbox must see for it."""
    for candidate in sorted(Path("/usr/bin").glob("python3.*"), reverse=True):
        if re.fullmatch(r"python3\.(1[1-9]|[2-9]\d)", candidate.name):
            return str(candidate), ()
    return str(Path(sys.executable).resolve()), (sys.base_prefix,)


def _program(compiler: Path, name: str) -> Path | None:
    found = Path(_ask(compiler, f"-print-prog-name={name}"))
    found = found if found.is_absolute() else Path("/usr/bin") / found
    return found.resolve() if found.exists() else None


def _library(compiler: Path, name: str) -> Path | None:
    found = Path(_ask(compiler, f"-print-file-name={name}"))
    return found.resolve() if found.is_absolute() and found.exists() else None


def _header_folders(compiler: Path) -> list[Path]:
    """The folders of the compiler's own and the C library's headers."""
    done = process.run([str(compiler), "-E", "-Wp,-v", "-xc++", "-"], stdin="")
    found = [Path(line.strip()).resolve() for line in done.stderr.splitlines() if line.startswith(" /")]
    own = [p for p in found if "c++" in p.parts or "gcc" in p.parts]
    libc = [p / sub for p in found for sub in ("bits", "sys", "gnu", "asm", "linux") if (p / sub).is_dir()]
    return sorted({*own, *libc})


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(parent) / name for name in sorted(files))


def _fingerprint(files: list[Path], folders: list[Path]) -> str:
    """A digest of the content of all of them; remembered by size and time, since reading 80 MB takes a moment."""
    everything = [*files, *(path for folder in folders for path in _walk(folder))]
    stats = [(str(path), path.stat()) for path in everything]
    key = hashlib.sha256(json.dumps([(p, s.st_size, s.st_mtime_ns) for p, s in stats]).encode()).hexdigest()
    memo = cachedir.path("host") / key
    try:
        return memo.read_text()
    except FileNotFoundError:
        digest = hashlib.sha256()
        for path in everything:
            digest.update(f"{path}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        memo.write_text(digest.hexdigest()[:32])
        return digest.hexdigest()[:32]
