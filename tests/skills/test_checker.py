"""The checker of the agents' tries passes what is right and fails what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clients import kernel_tester

from kbuild.scaffold import Backend, Op, Scaffold, render, write

pytestmark = [pytest.mark.nix, pytest.mark.heavy]

HERE = Path(__file__).parent


def test_every_task_has_a_check() -> None:
    tasks = {path.stem for path in (HERE / "tasks").glob("*.md")}
    help_text = subprocess.run(
        [sys.executable, HERE / "check_try.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(task in help_text for task in tasks)
    assert len(tasks) == 4


def test_right_and_wrong(tmp_path: Path) -> None:
    """`kbuild init` alone solves the RMSNorm; with a wrong sign in it, only the builds pass."""
    root = tmp_path / "qwen-norm"
    backends = (Backend.CUDA, Backend.CPU)
    write(
        render(Scaffold(org="try-org", name="qwen-norm", backends=backends, op=Op.RMSNORM, stable_abi=False)),
        root,
    )
    path = os.pathsep.join([str(kernel_tester().python.parent), str(Path(sys.executable).parent)])
    env = {**os.environ, "PATH": os.pathsep.join([path, os.environ["PATH"]])}

    def verdict() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(HERE / "check_try.py"), "rms_norm_h100", str(root)]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    right = verdict()
    assert right.returncode == 0, right.stdout + right.stderr
    assert right.stdout.count(": passed") == 5
    source = root / "rms_norm" / "rms_norm.cpp"
    source.write_text(source.read_text().replace(" + eps", " - eps"))
    wrong = verdict()
    assert wrong.returncode == 1
    assert "build: passed" in wrong.stdout
    assert "own tests: FAILED" in wrong.stdout
    assert "unseen tests: FAILED" in wrong.stdout
