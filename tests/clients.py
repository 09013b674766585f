"""Environments with the real Hub and loader clients, made once and kept.

They lie under $KBUILD_TEST_ENVS, by default `.cache/test-envs`; delete the folder to have them made anew.
PyTorch is installed once and shared by a `.pth` file.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TORCH = ("torch==2.13.0", "numpy")
NEW = ("kernels==0.17.2", "huggingface_hub==2.4.0")
TESTER = ("pytest>=8.3",)
TRITON = ("triton==3.9.0",)
MODELS = ("transformers==5.24.0", "diffusers==0.42.1")
OLD = ("kernels==0.13.0", "huggingface_hub==1.33.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A Python with one generation of the clients in it."""

    python: Path

    def run(self, code: str, *argv: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a script; the result carries its output, whatever the exit status."""
        return subprocess.run(
            [self.python, "-I", "-c", code, *argv],
            env={**_inherited(), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def check(self, code: str, *argv: str, environment: Mapping[str, str]) -> str:
        """Run a script that must succeed; its standard output."""
        finished = self.run(code, *argv, environment=environment)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout


def new_client() -> Client:
    """The current loader, which reads kernel repositories."""
    return _client("new", NEW)


def old_client() -> Client:
    """The last loader that reads model repositories, with a Hub client of its time."""
    return _client("old", OLD)


def kernel_tester() -> Client:
    """The current loader with pytest: what `kbuild test` needs."""
    return _client("tester", (*NEW, *TESTER))


def with_triton() -> Client:
    """The tester with Triton, whose interpreter needs no GPU; a download of 290 MB, 1 GB on the disk."""
    return _client("triton", (*NEW, *TESTER, *TRITON))


def with_models() -> Client:
    """The current loader beside transformers and diffusers."""
    return _client("models", (*NEW, *TESTER, *MODELS))


def _inherited() -> dict[str, str]:
    # Whatever the caller has set for the Hub must not reach a test.
    return {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "PYTHON", "DO_NOT_TRACK"))
    }


def _client(name: str, requirements: Sequence[str]) -> Client:
    root = Path(os.environ.get("KBUILD_TEST_ENVS") or Path(__file__).parents[1] / ".cache" / "test-envs")
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch = _environment(root / "torch", TORCH, paths=())
        return Client(python=_environment(root / name, requirements, paths=(_packages(torch),)))


def _packages(python: Path) -> Path:
    home = python.parents[1]
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))


def _environment(folder: Path, requirements: Sequence[str], *, paths: Sequence[Path]) -> Path:
    """The Python of an environment with these packages; made unless its stamp says that it is complete."""
    python = folder / "bin" / "python"
    stamp, wanted = folder / "complete", "\n".join([sys.version, *requirements, *map(str, paths)])
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    if paths:
        (_packages(python) / "shared.pth").write_text("".join(f"{path}\n" for path in paths))
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    stamp.write_text(wanted)
    return python
