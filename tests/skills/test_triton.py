"""The code of the skill triton-kernels runs in Triton's interpreter and compiles for every architecture.

No GPU runs it here: `gpu_try.sh run` does where there is one, with the block that reports what was compiled, which no
other place can run, and with real trials of autotune and torch.compile, which the interpreter cannot do.
"""

import re
import shlex
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
    """Excerpts are compared with the templates, the line of operation.py is run by test_code.py, the rest here."""
    languages = [block.language for block in blocks("python", "cpp", "cuda", "bash", "toml", skill=TRITON)]
    assert set(languages) == {"python", "bash"}
    assert languages.count("bash") == 1
    first = [block.text.splitlines()[0] for block in blocks("python", skill=TRITON)]
    kinds = [line.partition(":")[0] for line in first if line.startswith("# ")]
    assert sorted(kinds) == ["# file", "# file", "# from", "# from", "# from", "# gpu"]


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["run", "compile"])
def test_pages(projects: Path, tmp_path: Path, mode: str) -> None:
    client = with_triton()
    own = {
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        **({"TRITON_INTERPRET": "1"} if mode == "run" else {}),
    }
    done = subprocess.run(
        [client.python, SCRIPT, mode, projects],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def inspect(project: Path, cache: Path, command: str) -> subprocess.CompletedProcess[str]:
    """The command of the page, in a project, with the Python that has Triton."""
    program, script, *arguments = shlex.split(command)
    assert (program, script) == ("python", "scripts/inspect_kernel.py")
    return subprocess.run(
        [with_triton().python, TRITON / script, *arguments],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.heavy
def test_a_kernel_is_inspected_without_a_gpu(projects: Path, tmp_path: Path) -> None:
    (block,) = blocks("bash", skill=TRITON)
    silu, cache = projects / "my-silu", tmp_path / "cache"
    shown = inspect(silu, cache, block.text)
    assert re.sub(r"\d+ (?=registers)", "N ", shown.stdout).split("\n") == [
        "   1 ld.global.v4.b32",
        "   1 st.global.v4.b32",
        "  N registers",
        "   0 bytes of stack a thread",
        "",
    ]
    assert shown.returncode == 0, shown.stderr
    narrow = inspect(silu, cache, block.text.replace("i32:16", "i32"))
    assert "   8 ld.global.b16\n" in narrow.stdout
    spilling = inspect(silu, cache, block.text.replace("1024", "131072"))
    assert spilling.returncode == 1
    assert re.search(r"\n *[1-9]\d+ bytes of stack a thread\n", spilling.stdout)
    ptx = inspect(silu, cache, f"{block.text.rstrip()} --ptx 86").stdout
    assert ".version 8.6\n.target sm_90a\n" in ptx
    short = inspect(silu, cache, block.text.replace(", 1024", ""))
    assert short.stderr.endswith("ValueError: the arguments are out, input, n, BLOCK\n")
