"""Small build trees, as `kbuild build` leaves them."""

import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kbuild.metadata import (
    BackendInfo,
    BackendType,
    BuilderVersion,
    GitStatus,
    Metadata,
    Provenance,
    digest_of,
)

CPU = "torch213-cxx11-cpu-x86_64-linux"
UNIVERSAL = "torch-universal"


@cache
def library() -> bytes:
    """A shared library with `int answer(void)`, which returns 42."""
    with tempfile.TemporaryDirectory() as folder:
        argv = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", f"{folder}/tiny.so"]
        subprocess.run(argv, input=b"int answer(void) { return 42; }", check=True)
        return Path(folder, "tiny.so").read_bytes()


def python_package(answer: int = 42) -> dict[str, bytes]:
    text = f"from . import layers\n\nanswer = {answer}\n\n\ndef relu(x):\n    return x.clamp(min=0)\n"
    return {"__init__.py": text.encode(), "layers.py": b""}


def native_package() -> dict[str, bytes]:
    return {
        "__init__.py": (
            b"import ctypes\nfrom pathlib import Path\n\n"
            b"answer = ctypes.CDLL(str(Path(__file__).with_name('_tiny.abi3.so'))).answer()\n\n\n"
            b"def relu(x):\n    return x.clamp(min=0)\n"
        ),
        "_tiny.abi3.so": library(),
    }


def write_variant(
    build: Path,
    name: str,
    files: Mapping[str, bytes],
    *,
    version: int = 1,
    kernel: str = "relu",
    identity: str | None = None,
    dirty: bool = False,
    commit: str = "a" * 40,
    archs: tuple[str, ...] | None = None,
) -> Path:
    """Lay out one variant with a right metadata.json; its folder."""
    folder = build / name
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    Metadata(
        id=identity or f"_{kernel}_{name}_{version}".replace("-", "_"),
        name=kernel,
        version=version,
        license="Apache-2.0",
        backend=BackendInfo(type=BackendType.CPU if archs is None else BackendType.CUDA, archs=archs),
        digest=digest_of(folder),
        provenance=Provenance(
            kernel_builder=BuilderVersion(version="0.1.0"), kernel=GitStatus(commit=commit, dirty=dirty)
        ),
    ).write(folder / "metadata.json")
    return folder
