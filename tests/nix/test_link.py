"""What a kernel may take from this machine's compiler: whatever runs on every manylinux_2_28 system, and no more."""

import shutil
from pathlib import Path

import pytest
from clients import Client
from runs import kbuild

from kbuild.abi.verify import verify_variant

pytestmark = pytest.mark.nix

PROJECT = Path(__file__).parents[1] / "fixtures" / "projects" / "standard_library"
CPU = "torch213-cxx11-cpu-x86_64-linux"

_FAILURES = """
import json, sys
from pathlib import Path
from kernels import get_local_kernel

print(json.dumps(get_local_kernel(Path(sys.argv[1])).failures()))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    shutil.copytree(PROJECT, root, ignore=shutil.ignore_patterns("build", "__pycache__"))
    return root


def test_the_standard_library_works(project: Path, new: Client) -> None:
    """Threads, clocks, files, numbers and OpenMP, whose headers ask for more than glibc 2.28 on a newer host."""
    built = kbuild("build", project, "--variant", CPU)
    assert built.code == 0, built.stderr
    variant = project / "build" / CPU
    verdict = verify_variant(variant)
    assert verdict.ok, verdict.violations
    assert new.check(_FAILURES, str(variant), environment={}) == "[]\n"


def test_a_symbol_that_nothing_defines_is_named(project: Path) -> None:
    """One that only a newer glibc has, and one that no source of the kernel defines."""
    binding = project / "torch-ext" / "torch_binding.cpp"
    text = binding.read_text().replace(
        "return failures();", "arc4random(), other::nowhere(1); return failures();"
    )
    declarations = 'extern "C" unsigned arc4random() noexcept;\nnamespace other { int nowhere(int); }\n'
    binding.write_text(declarations + text)
    built = kbuild("build", project, "--variant", CPU)
    assert built.code == 4
    for name in ("arc4random", "other::nowhere(int)"):
        assert f"neither this kernel nor PyTorch nor a manylinux_2_28 system has {name}\n" in built.stderr
