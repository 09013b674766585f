"""Which PyTorch this machine has, found without importing it."""

import json
import os
import sys
from dataclasses import dataclass

from kbuild import process
from kbuild.config.model import Version

# Runs under any Python 3: prints the installed torch's version and the CUDA version it was built with.
_PROBE = r"""
import importlib.util, json, re
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    text = open(spec.origin.rsplit("/", 1)[0] + "/version.py").read()
    read = lambda name: (re.search(r"(?m)^" + name + r"\b[^=\n]*= *'([^']*)'", text) or [None, None])[1]
    print(json.dumps([read("__version__"), read("cuda")]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledTorch:
    """`cuda` is None for a CPU build; `python` is the interpreter that has it."""

    torch: Version
    cuda: Version | None
    python: str

    def __str__(self) -> str:
        return f"PyTorch {self.torch} with {'no CUDA' if self.cuda is None else f'CUDA {self.cuda}'}"


def installed_torch() -> InstalledTorch | None:
    """The PyTorch of the running interpreter, else of `python3` on the PATH (an active virtual environment)."""
    found = process.which("python3")
    for python in dict.fromkeys([sys.executable, *([str(found)] if found else [])]):
        done = process.run(
            [python, "-I" if python == sys.executable else "-E", "-c", _PROBE], env=dict(os.environ)
        )
        if done.ok and done.stdout.strip():
            torch, cuda = json.loads(done.stdout)
            return InstalledTorch(torch=_minor(torch), cuda=_minor(cuda) if cuda else None, python=python)
    return None


def _minor(text: str) -> Version:
    major, minor, *_ = text.split(".")
    return Version((int(major), int(minor)))
