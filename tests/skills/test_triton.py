"""The code of the skill triton-kernels runs in Triton's interpreter and compiles for every architecture.

No GPU runs it here: `gpu_try.sh run` does where there is one, with the block that reports what was compiled, which no
other place can run, and with real trials of autotune and torch.compile, which the interpreter cannot do.
"""

import subprocess
from pathlib import Path

import pytest
from clients import with_triton
from skills.material import TRITON, blocks

from kbuild.scaffold import Backend, Op, Scaffold, render, write

SCRIPT = Path(__file__).parent / "triton_pages.py"


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    for op, name in ((Op.ELEMENTWISE, "my-silu"), (Op.RMSNORM, "my-norm")):
        backends = (Backend.CUDA, Backend.CPU)
        scaffold = Scaffold(org="my-org", name=name, backends=backends, op=op, stable_abi=False, noarch=True)
        write(render(scaffold), tmp_path / name)
    return tmp_path


def test_no_block_is_without_a_test() -> None:
    """Excerpts are compared with the templates, the others run by the script."""
    assert {block.language for block in blocks(r"python", "cpp", "cuda", "bash", "toml", skill=TRITON)} == {
        "python"
    }
    first = [block.text.splitlines()[0] for block in blocks("python", skill=TRITON)]
    kinds = [line.partition(":")[0] for line in first if line.startswith("# ")]
    assert sorted(kinds) == ["# file", "# from", "# from", "# from", "# gpu"]


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["run", "compile"])
def test_pages(projects: Path, tmp_path: Path, mode: str) -> None:
    client = with_triton()
    own = {
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        **({"TRITON_INTERPRET": "1"} if mode == "run" else {}),
    }
    done = subprocess.run(
        [client.python, SCRIPT, mode, TRITON, projects],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
