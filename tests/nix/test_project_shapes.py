"""What authors do with files, includes and flags, all of it in one project that has to build."""

import json
from pathlib import Path

import pytest
from runs import kbuild

from kbuild import host, nixcmd
from kbuild.abi.verify import verify_variant
from kbuild.project import Project
from kbuild.workspace import workspace

pytestmark = pytest.mark.nix

CPU = "torch213-cxx11-cpu-x86_64-linux"
CUDA = "torch213-cxx11-cu130-x86_64-linux"

BUILD = """
[general]
name = "odd-shapes"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]

[torch]
src = ["torch-ext/torch_binding.cpp", "torch-ext/shared.h"]

[kernel.cpu]
backend = "cpu"
depends = []
cxx-flags = ["-D", "SPLIT=1", "--std=c++20", "-Ofast"]
src = ["./csrc/in/op one.cpp", "csrc//op.h", "csrc/in/../in/part.cpp"]

[kernel.cuda]
backend = "cuda"
depends = []
cuda-capabilities = ["9.0"]
cuda-flags = ["-lineinfo"]
cxx-flags = ["-D", "SPLIT=1", "--std=c++20", "-Xcompiler", "-Wall", "-Ofast"]
src = ["cuda/op$'@#.cu", "cuda/nested.cuh", "cuda/included.cu", "cuda/deeper.cu"]
"""

FILES = {
    "torch-ext/shared.h": "#pragma once\ninline int shared() { return 1; }\n",
    "torch-ext/odd_shapes/__init__.py": "from ._ops import ops\n",
    "torch-ext/torch_binding.cpp": """
#include <torch/library.h>
#include "registration.h"
#include "shared.h"
int op();
int64_t run() { return op() + shared(); }
TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("run() -> int", &run); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
""",
    "csrc/op.h": "#pragma once\ninline int from_csrc() { return SPLIT; }\n",
    "csrc/in/op one.cpp": """
#include "op.h"
#include "../../torch-ext/shared.h"
#include "part.cpp"
#if __cplusplus < 202002L
#error "not C++20"
#endif
#if !__has_include("op.h")
#error "op.h is out of sight"
#endif
int op() { return from_csrc() + shared() + part() + sizeof(__DATE__ __TIME__); }
""",
    "csrc/in/part.cpp": "#ifndef PART\n#define PART\nstatic inline int part() { return 0; }\n#endif\n",
    "cuda/nested.cuh": '#include "included.cu"\n',
    "cuda/included.cu": """
#ifndef A
#define A
#include "deeper.cu"
static __global__ void k(float* x) { *x = deeper(*x); }
#endif
""",
    "cuda/deeper.cu": """
#ifndef B
#define B
#include <cuda_fp16.h>
__device__ static inline float deeper(float x) { return __half2float(__float2half(x) * __float2half(2.f)); }
#endif
""",
    "cuda/op$'@#.cu": """
#include "nested.cuh"
#if __cplusplus < 202002L
#error "not C++20"
#endif
int op() { k<<<1, 1>>>(nullptr); return SPLIT; }
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "odd shapes"
    for name, text in {"build.toml": BUILD, **FILES}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def recipes(root: Path) -> dict[str, frozenset[str]]:
    """Per variant the derivations that it takes."""
    opened = Project.open(root)
    nix = nixcmd.probe()
    session = {"host": host.detect().as_json(), "provenance": None}
    with workspace(root, list(opened.visible_files()), session) as place:
        found = nix.evaluate(place.project, [CPU, CUDA], {"kbuild": place.builder})
    closures = nix.closures([recipe.drv for recipe in found.values()])
    return {name: closures[recipe.drv] for name, recipe in found.items()}


def units(derivations: frozenset[str]) -> dict[str, str]:
    return {nixcmd.step_name(drv): drv for drv in derivations if nixcmd.step_name(drv).endswith(".o")}


def test_it_builds_and_no_path_of_the_machine_gets_in(project: Path) -> None:
    built = kbuild("build", project, "--variant", CPU, "--variant", CUDA)
    assert built.code == 0, built.stderr
    for name in (CPU, CUDA):
        assert verify_variant(project / "build" / name).ok
    library = next((project / "build" / CUDA).glob("*.so")).read_bytes()
    assert b"/nix/store" not in library


def test_an_edited_header_recompiles_only_what_includes_it(project: Path) -> None:
    before = recipes(project)
    (project / "csrc" / "op.h").write_text(FILES["csrc/op.h"] + "// edited\n")
    after = recipes(project)
    assert units(before[CUDA]) == units(after[CUDA])
    changed = {name for name, drv in units(after[CPU]).items() if units(before[CPU])[name] != drv}
    assert changed == {"csrc-in-op-one.cpp.o"}


def test_builds_that_differ_in_python_alone_can_share_a_process(project: Path) -> None:
    assert kbuild("build", project, "--variant", CPU).code == 0
    first = json.loads((project / "build" / CPU / "metadata.json").read_text())
    ops = (project / "build" / CPU / "_ops.py").read_text()
    before = units(recipes(project)[CPU])
    init = project / "torch-ext" / "odd_shapes" / "__init__.py"
    init.write_text(init.read_text() + "TAG = 1\n")
    assert units(recipes(project)[CPU]) == before
    assert kbuild("build", project, "--variant", CPU).code == 0
    assert json.loads((project / "build" / CPU / "metadata.json").read_text())["id"] != first["id"]
    assert (project / "build" / CPU / "_ops.py").read_text() != ops


def test_an_include_by_macro_sees_every_listed_file(project: Path) -> None:
    nested = project / "cuda" / "nested.cuh"
    nested.write_text('#define BY_MACRO "by_macro.cu"\n#include BY_MACRO\n' + FILES["cuda/nested.cuh"])
    (project / "cuda" / "by_macro.cu").write_text("#pragma once\n")
    config = project / "build.toml"
    config.write_text(config.read_text().replace('"cuda/deeper.cu"', '"cuda/deeper.cu", "cuda/by_macro.cu"'))
    built = kbuild("build", project, "--variant", CUDA)
    assert built.code == 0, built.stderr
