"""The skill's code runs: CUDA through nvcc for every architecture, Python and scripts against a built kernel."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clients import Client, with_models
from runs import kbuild
from skills.material import PAGES, SCRIPTS, SKILL, TRITON, Block, blocks
from skills.test_content import GPU_PAGES, facts

from kbuild.scaffold import Backend, Op, Scaffold, render, write
from kbuild.toolchain import load_lock
from kbuild.toolchain.fetch import ensure

pytestmark = pytest.mark.nix

ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
VARIANTS = ("torch213-cxx11-cpu-x86_64-linux", "torch213-cxx11-cu130-x86_64-linux")
STORE = Path("/nix/store")
ROOT = Path(__file__).parents[2]


def nvcc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = next(STORE.glob("*-cuda-toolkit-13.0/bin/nvcc"))  # as the project's build leaves it
    argv: list[str] = [str(program), "-std=c++17", "-Werror", "all-warnings", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def models() -> Client:
    return with_models()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """my-org/my-norm of the pages, built for the CPU and for CUDA."""
    root = tmp_path_factory.mktemp("skill") / "my-norm"
    backends = (Backend.CUDA, Backend.CPU)
    write(
        render(Scaffold(org="my-org", name="my-norm", backends=backends, op=Op.RMSNORM, stable_abi=False)),
        root,
    )
    built = kbuild("build", root, *(word for name in VARIANTS for word in ("--variant", name)))
    assert built.code == 0, built.stderr
    return root


@pytest.fixture(scope="module")
def cuda(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every CUDA block under the name that its first line gives it, beside the project's launch.cuh.

    nvcc came with the project.
    """
    folder = tmp_path_factory.mktemp("cuda")
    shutil.copy(project / "rms_norm" / "launch.cuh", folder)
    for block in blocks("cuda"):
        name = re.match(r"// file: (\S+)\n", block.text)
        assert name is not None, block
        assert not (folder / name[1]).exists(), f"two blocks are called {name[1]}"
        (folder / name[1]).write_text(block.text)
    return folder


UNITS = [name for block in blocks("cuda") for name in re.findall(r"// file: (\S+\.cu)\n", block.text)]


@pytest.mark.parametrize("name", UNITS)
def test_cuda_compiles_for_every_architecture(cuda: Path, tmp_path: Path, name: str) -> None:
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
    compiled = nvcc("-c", cuda / name, "-o", tmp_path / "out.o", "-Xptxas", "-v", *targets)
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    assert_no_spills(compiled.stderr, len(ARCHITECTURES))


@pytest.mark.parametrize("op", list(Op))
def test_the_templates_spill_nothing(cuda: Path, tmp_path: Path, op: Op) -> None:
    assert cuda.is_dir()
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
    scaffold = Scaffold(org="a", name="k", backends=(Backend.CUDA,), op=op, stable_abi=False)
    for path, text in render(scaffold).items():
        (tmp_path / Path(path).name).write_text(text)
    (source,) = tmp_path.glob("*.cu")
    compiled = nvcc("-c", source, "-o", tmp_path / "out.o", "-Xptxas", "-v", *targets)
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    assert_no_spills(compiled.stderr, len(ARCHITECTURES))


def assert_no_spills(log: str, least: int) -> None:
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert len(spills) >= least, log
    assert set(spills) == {("0", "0")}, log


DIVIDES = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#define __device__
#define __host__
using std::fmaf;
using std::max;
uint32_t state = 1;
uint32_t random_bits() { return state = state * 1664525u + 1013904223u; }
float as_float(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
uint32_t as_bits(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
float __uint_as_float(uint32_t bits) { return as_float(bits); }
uint32_t __float_as_uint(float value) { return as_bits(value); }
int __float_as_int(float value) { return static_cast<int>(as_bits(value)); }
// STRUCTS
int integer(float x, float scale) {
  return static_cast<int>(std::nearbyint(std::fmin(std::fmax(x / scale, -128.0f), 127.0f)));
}
int main() {
  long divisions = 0, wrong = 0, products = 0;
  for (uint32_t exponent = 0; exponent < 255; ++exponent)
    for (int turn = 0; turn < 20; ++turn) {
      const float scale = as_float(exponent << 23 | random_bits() >> 9 | 1);
      const Divisor divisor(scale);
      for (const float x : {0.0f, 1e-45f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN})
        wrong += divisor.divide(x) != integer(x, scale);
      for (int i = 0; i < 530; ++i) {  // around each tie and beyond, within two steps of float
        const float tie = (i / 2 - 132 + 0.5f) * scale;
        if (std::isinf(tie)) continue;
        const float x = as_float(as_bits(tie) + random_bits() % 5 - 2);
        ++divisions;
        wrong += divisor.divide(x) != integer(x, scale);
        products += integer(x * (1.0f / scale), 1.0f) != integer(x, scale);
      }
    }
  const auto larger = Magnitude::combine;
  const bool kept = std::isnan(larger(NAN, INFINITY)) && std::isnan(larger(1.0f, NAN)) && larger(2.0f, 1.0f) == 2.0f &&
                    larger(0.0f, 1e-45f) == 1e-45f && larger(INFINITY, 3e38f) == INFINITY;
  std::printf("%d %d %d %d", divisions > 1000000, wrong == 0, products > 0, kept);
}
"""


def struct(file: str, name: str) -> str:
    (block,) = (block for block in blocks("cuda") if block.text.startswith(f"// file: {file}\n"))
    found = re.search(rf"^struct {name} \{{.*?^\}};$", block.text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0]


def test_the_divisor_divides(tmp_path: Path) -> None:
    """On the CPU, whose float32 is the GPU's: around ties and for every scale, and no NaN is lost from a maximum."""
    structs = struct("narrow.cu", "Divisor") + struct("row_reduce.cuh", "Magnitude")
    (tmp_path / "divides.cpp").write_text(DIVIDES.replace("// STRUCTS", structs))
    argv: list[str | Path] = [
        "g++",
        "-std=c++17",
        "-O2",
        "-ffp-contract=off",
        "-o",
        tmp_path / "divides",
        tmp_path / "divides.cpp",
    ]
    run(*argv, env=dict(os.environ), cwd=tmp_path)
    assert run(tmp_path / "divides", env={}, cwd=tmp_path) == "1 1 1 1"


ACTIVATES = """
#include <cmath>
#include <cstdio>
#define __device__
#define __expf std::exp
// As the CUDA C++ Programming Guide says of it.
float __fdividef(float x, float y) { return std::fabs(y) > 0x1p126f && std::isfinite(y) ? 0.0f : x / y; }
// ACTIVATIONS
bool close(float actual, double exact) { return std::fabs(actual - exact) <= 4e-6 * std::fabs(exact) + 1e-6; }
int main() {
  bool near = true;
  for (int i = -100000; i <= 100000; ++i) {
    const double x = static_cast<float>(i * 1e-3);
    const double inner = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    near &= close(Silu::apply(x), x / (1 + std::exp(-x)));
    near &= close(Gelu::apply(x), 0.5 * x * (1 + std::tanh(inner)));
  }
  std::printf("%d %d %d", near, Silu::apply(INFINITY) == INFINITY, std::isnan(Silu::apply(-INFINITY)));
}
"""


def test_the_gates_activate(tmp_path: Path) -> None:
    """On the CPU, against float64."""
    (block,) = (block for block in blocks("cuda") if block.text.startswith("// file: gated.cu\n"))
    activations = block.text.partition('#include "pack.cuh"\n')[2].partition("namespace {\n")[0]
    assert "struct Gelu" in activations
    (tmp_path / "activates.cpp").write_text(ACTIVATES.replace("// ACTIVATIONS", activations))
    argv: list[str | Path] = ["g++", "-std=c++17", "-o", tmp_path / "activates", tmp_path / "activates.cpp"]
    run(*argv, env=dict(os.environ), cwd=tmp_path)
    assert run(tmp_path / "activates", env={}, cwd=tmp_path) == "1 1 1"


@pytest.mark.parametrize("found", [True, False], ids=["c++filt", "mangled"])
def test_resource_usage_is_a_table(cuda: Path, tmp_path: Path, found: bool) -> None:
    """Of real nvcc logs, as `kbuild build -L` prints them: a step's name before each line, two steps side by side."""
    (tmp_path / "spills.cu").write_text(SPILLS)
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ("90", "100")]
    logs = []
    for source in (cuda / "gated.cu", tmp_path / "spills.cu"):
        compiled = nvcc("-c", source, "-o", tmp_path / "out.o", "--resource-usage", *targets)
        logs.append([f"{source.name}.o> {line}\n" for line in compiled.stderr.splitlines()])
    mixed = "".join(line for pair in itertools.zip_longest(*logs, fillvalue="") for line in pair)
    script = SKILL / "scripts" / "resource_usage.py"
    environment = dict(os.environ) if found else {"PATH": str(tmp_path)}
    table, nothing = (
        subprocess.run(
            [sys.executable, script],
            input=log,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        for log in (f"building 1 variant in 2 steps\n{mixed}", "building 1 variant in 2 steps\n")
    )
    assert table.returncode == 1, "something spills"
    head, first, *others = table.stdout.splitlines()
    assert head.split() == ["kernel", "sm_90", "sm_100"]
    assert re.fullmatch(r"\S+ +64\+\d+ +64\+\d+", first)
    assert first.startswith("spills " if found else "_Z6spillsPfPKf ")
    assert len(others) == 12
    assert all(re.fullmatch(r".+\S +\d+ +\d+", line) for line in others)
    assert any(line.startswith("gated_kernel<Silu, __nv_bfloat16, 8> ") for line in others) == found
    assert nothing.returncode == 1
    assert "--resource-usage" in nothing.stderr


SPILLS = """
__global__ void __launch_bounds__(1024) spills(float* out, const float* in) {
  float x[80], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 80; ++i) sum += x[i] = in[i * 1024 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 80; ++i) out[i * 1024 + threadIdx.x] = x[i] * sum;
}
"""


def test_wide_accesses_are_what_the_page_says(cuda: Path) -> None:
    for arch, access in (("90", "v4.u32"), ("100", "v8.u32")):
        ptx = nvcc("-ptx", f"-arch=sm_{arch}", cuda / "b200_wide.cu", "-o", "-").stdout
        assert re.findall(r"st\.global\.(\S+)", ptx)[0] == access


def test_the_wait_precedes_every_access(cuda: Path) -> None:
    """As the page says, of loads that are marked as constant too."""
    ptx = nvcc("-ptx", "-arch=sm_90", cuda / "h100_programmatic_launch.cu", "-o", "-").stdout
    order = re.findall(r"griddepcontrol\.wait|(?:ld|st)\.global[.\w]*", ptx)
    assert order == ["griddepcontrol.wait", "ld.global.nc.f32", "st.global.f32"]


def test_limits_are_nvidias_own() -> None:
    """Against the traits that NVIDIA ships with its toolkit."""
    tree = load_lock().trees["cuda-13.2-cccl"]
    ensure([tree.key])
    headers = STORE.glob(f"*-{tree.store_name}/include/cccl/cuda/__device/arch_traits.h")
    header = next(headers).read_text()
    (registers,) = {
        int(count)
        for count in re.findall(r"__traits\.max_registers_per_multiprocessor\s*= (\d+) \* 1024;", header)
    }
    for page in GPU_PAGES:
        table = facts(page)
        capability = re.match(r"(\d+)\.(\d)", table["compute capability"])
        assert capability is not None
        traits = header.partition(f"arch_traits<arch_id::sm_{capability[1]}{capability[2]}>() noexcept")[2]

        def trait(name: str, traits: str = traits) -> int:
            found = re.search(rf"__traits\.{name}\s*= (\d+)", traits)
            assert found is not None
            return int(found[1])

        shared = trait("max_shared_memory_per_multiprocessor")
        threads, per_sm = trait("max_threads_per_multiprocessor"), trait("max_blocks_per_multiprocessor")
        assert table["threads, blocks a multiprocessor"] == f"{threads}, {per_sm}", page.name
        assert table["registers a multiprocessor"] == str(1024 * registers), page.name
        memory = table["shared memory a multiprocessor, a block"]
        assert memory.startswith(f"{shared} KB, {shared - 1} KB"), page.name


def block_of(first_line: str, language: str, skill: Path = SKILL) -> Block:
    (block,) = (block for block in blocks(language, skill=skill) if block.text.startswith(first_line + "\n"))
    return block


def test_a_cuda_build_that_takes_cpu_tensors(tmp_path: Path, models: Client) -> None:
    """As the page says, step by step: builds for both, and passes its tests on the CPU."""
    section = block_of("# file: build.toml (elementwise, appended)", "toml")
    binding = block_of("// file: torch-ext/torch_binding.cpp", "cpp")
    tests = block_of("# file: tests/test_silu.py (appended)", "python")
    root = tmp_path / "my-silu"
    backends = (Backend.CUDA, Backend.CPU)
    write(
        render(Scaffold(org="my-org", name="my-silu", backends=backends, op=Op.ELEMENTWISE, stable_abi=True)),
        root,
    )
    folder = root / "silu"
    for file in (folder / "silu.cu", folder / "silu.cpp"):
        name = "silu_cuda(" if file.suffix == ".cu" else "silu_cpu("
        file.write_text(file.read_text().replace("const char* silu(", f"const char* {name}"))
    header = (folder / "silu.h").read_text()
    (declared,) = (line for line in header.splitlines() if line.startswith("const char* silu("))
    both = "\n".join(declared.replace("silu(", f"silu_{backend}(") for backend in ("cuda", "cpu"))
    (folder / "silu.h").write_text(header.replace(declared, both))
    (root / "torch-ext" / "torch_binding.cpp").write_text(binding.body)
    for file, block in ((root / "build.toml", section), (root / "tests" / "test_silu.py", tests)):
        file.write_text(f"{file.read_text()}\n\n{block.body}")
    checked = kbuild("check", root, "--strict")
    assert checked.code == 0, checked.stdout
    variants = [f"torch-stable-abi210-{backend}-x86_64-linux" for backend in ("cpu", "cu130")]
    built = kbuild("build", root, *(word for name in variants for word in ("--variant", name)))
    assert built.code == 0, built.stderr
    (library,) = (root / "build" / variants[1]).glob("*.so")
    assert "torch_parallel_for" in run("nm", "-D", library, env=dict(os.environ), cwd=root)
    python = os.pathsep.join([str(models.python.parent), os.environ["PATH"]])
    tested = kbuild("test", root, "--json", env={"PATH": python})
    assert tested.code == 0, tested.stderr
    assert tested.json()["skipped"] == 3, "those that need a GPU"


def environment(project: Path, *folders: Path) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([*map(str, folders), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": os.environ.get("HOME", "/"),
        "LOCAL_KERNELS": f"my-org/my-norm={project}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run(*argv: str | Path, env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(list(argv), env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


BINDINGS = {
    name: block.body
    for block in blocks("cpp")
    for name in re.findall(r"// file: (\w+)/torch_binding.cpp\n", block.text)
}


@pytest.mark.parametrize("kind", BINDINGS)
def test_bindings_build_and_run(tmp_path: Path, models: Client, kind: str) -> None:
    root = tmp_path / "my-silu"
    stable = kind == "stable"
    scaffold = Scaffold(
        org="my-org", name="my-silu", backends=(Backend.CPU,), op=Op.ELEMENTWISE, stable_abi=stable
    )
    write(render(scaffold), root)
    # The place of the device code, which the page leaves out.
    binding, fills = re.subn(r"// guard, stream, and .* for (\S+) rows .*", FILL[kind], BINDINGS[kind])
    assert fills == 1
    (root / "torch-ext" / "torch_binding.cpp").write_text(binding)
    package = root / "torch-ext" / "my_silu"
    for name in ("layers", "reference"):
        (package / f"{name}.py").unlink()
    (functional,) = (block for block in blocks("python") if block.text.startswith("# file: functional.py\n"))
    (package / "functional.py").write_text(functional.body)
    (package / "__init__.py").write_text("from . import _ops\nfrom .functional import split_rows\n")
    assert kbuild("check", root, "--strict").stdout == ""
    variant = "torch-stable-abi210-cpu-x86_64-linux" if stable else VARIANTS[0]
    built = kbuild("build", root, "--variant", variant)
    assert built.code == 0, built.stderr
    run(models.python, "-c", TWO_RESULTS, env=environment(root), cwd=root)


def add_to_binding(root: Path) -> None:
    binding = root / "torch-ext" / "torch_binding.cpp"
    text = binding.read_text()
    for line in block_of("// file: torch_binding.cpp (elementwise, added)", "cpp").body.splitlines():
        kind = line.strip().partition("(")[0]
        text = text.replace(f"  {kind}(", f"{line}\n  {kind}(", 1)
    binding.write_text(text)


def add_to_loop(root: Path, line: str) -> None:
    operation = root / "torch-ext" / "my_silu" / "operation.py"
    text = operation.read_text()
    assert text.count("\n):\n") == 1
    operation.write_text(text.replace("\n):\n", f"\n{line.rstrip()}\n):\n"))


@pytest.mark.parametrize("noarch", [False, True], ids=["compiled", "noarch"])
def test_the_same_operation_without_a_gradient(tmp_path: Path, models: Client, noarch: bool) -> None:
    root = silu(tmp_path, noarch=noarch)
    if noarch:
        add_to_loop(
            root, block_of("# file: operation.py (elementwise, added to the loop)", "python", TRITON).body
        )
    else:
        add_to_binding(root)
    functional = root / "torch-ext" / "my_silu" / "functional.py"
    others = functional.read_text().partition("def silu(")[0]
    functional.write_text(
        others + block_of("# file: functional.py (elementwise, in the place of silu)", "python").body
    )
    assert kbuild("check", root, "--strict").stdout == ""
    build_and_test(root, "torch-cpu" if noarch else VARIANTS[0], models)
    run(models.python, "-c", WITHOUT_GRADIENT, env=environment(root), cwd=root)


def silu(folder: Path, *, noarch: bool) -> Path:
    backends = (Backend.CUDA, Backend.CPU) if noarch else (Backend.CPU,)
    root = folder / "my-silu"
    scaffold = Scaffold(
        org="my-org", name="my-silu", backends=backends, op=Op.ELEMENTWISE, stable_abi=False, noarch=noarch
    )
    write(render(scaffold), root)
    return root


def build_and_test(root: Path, variant: str, models: Client) -> None:
    built = kbuild("build", root, "--variant", variant)
    assert built.code == 0, built.stderr
    python = os.pathsep.join([str(models.python.parent), os.environ["PATH"]])
    tested = kbuild("test", root, "--json", env={"PATH": python})
    assert tested.code == 0, tested.stderr


def test_a_backward_of_one_s_own(tmp_path: Path, models: Client) -> None:
    root = silu(tmp_path, noarch=True)
    add_to_loop(root, '    ("silu_backward", "(Tensor grad, Tensor input) -> Tensor", _silu_backward),')
    operation = root / "torch-ext" / "my_silu" / "operation.py"
    operation.write_text(operation.read_text().replace("\n\nfor name,", SILU_BACKWARD + "\n\nfor name,"))
    functional = root / "torch-ext" / "my_silu" / "functional.py"
    before, _, after = functional.read_text().partition("def _backward(")
    own = block_of("# file: functional.py (elementwise, in the place of _backward)", "python").body
    functional.write_text(f"{before}{own}\n\n{after[after.index('torch.library.register_autograd(') :]}")
    tests = root / "tests" / "test_silu.py"
    appended = block_of("# file: tests/test_silu.py (appended, for silu_backward)", "python").body
    tests.write_text(f"{tests.read_text()}\n\n{appended}")
    assert kbuild("check", root, "--strict").stdout == ""
    build_and_test(root, "torch-cpu", models)
    run(models.python, "-c", SECOND_GRADIENT, env=environment(root), cwd=root)


SILU_BACKWARD = """

def _silu_backward(grad, input):
    _expect(grad.is_contiguous(), "grad must be contiguous")
    with torch.no_grad():
        gate = torch.sigmoid(input.float())
        return (grad.float() * gate * (1 + input.float() * (1 - gate))).to(input.dtype)
"""
SECOND_GRADIENT = """
import warnings

import torch
from kernels import get_local_kernel
from pathlib import Path

kernel = get_local_kernel(Path("."))
ops = kernel._ops.ops
x = torch.randn(5, 7, requires_grad=True)
with torch.profiler.profile() as profile:
    kernel.silu(x).sum().backward()
assert any(event.name.endswith("silu_backward") for event in profile.events())
# What the page says of such an op where a second gradient is asked for.
x.grad = None
first = ops.silu_backward(torch.ones(5, 7), x)
assert first.requires_grad
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first.sum().backward()
assert any("autograd kernel was not registered" in str(warning.message) for warning in caught)
assert x.grad is None
"""


WITHOUT_GRADIENT = """
import torch
from kernels import get_local_kernel
from pathlib import Path

kernel = get_local_kernel(Path("."))
x = torch.randn(5, 7)
assert torch.equal(kernel.silu(x), kernel._ops.ops.silu(x))
torch.library.opcheck(kernel._ops.ops.silu_without_grad.default, (x,))


def called(x):
    with torch.profiler.profile() as profile:
        kernel.silu(x)
    return [event.name.rpartition("::")[2] for event in profile.events() if "my_silu" in event.name]


wanting = x.clone().requires_grad_()
assert called(x) == ["silu_without_grad"]
assert "silu" in called(wanting)
with torch.no_grad():
    assert called(wanting) == ["silu_without_grad"]
# What the page says of torch.func.
try:
    torch.func.grad(lambda t: kernel._ops.ops.silu(t).sum())(x)
except RuntimeError as error:
    assert "must override the setup_context staticmethod" in str(error)
else:
    raise AssertionError("grad")
assert not torch.func.jvp(kernel._ops.ops.silu, (x,), (x,))[1].any()
"""

FILL = {
    "ordinary": r"half.zero_(); std::fill_n(scale.mutable_data_ptr<float>(), \1, 0.0f);",
    "stable": r"torch::stable::zero_(half); std::fill_n(static_cast<float*>(scale.data_ptr()), \1, 0.0f);",
}
TWO_RESULTS = """
import warnings

import torch
from kernels import get_local_kernel
from pathlib import Path

kernel = get_local_kernel(Path("."))
ops, split_rows = kernel._ops.ops, kernel.split_rows
x = torch.ones(3, 8, dtype=torch.float16)
for half, scale in (split_rows(x), torch.compile(split_rows, fullgraph=True, backend="aot_eager")(x)):
    assert (half.shape, half.dtype) == ((3, 4), torch.float16)
    assert (scale.shape, scale.dtype) == ((3, 1), torch.float32)
    assert not half.any() and not scale.any()
out = torch.ones(3, 4, dtype=torch.float16), torch.ones(3, 1)
compiled = torch.compile(lambda t, half, scale: split_rows(t, out=(half, scale)), fullgraph=True, backend="aot_eager")
for function in (lambda t, half, scale: split_rows(t, out=(half, scale)), compiled):
    out[0].fill_(1), out[1].fill_(1)
    function(x, *out)
    assert not out[0].any() and not out[1].any()
torch.library.opcheck(ops.split_rows.default, (x,))
torch.library.opcheck(ops.split_rows_out.default, (*out, x))
# Rows without a column have a result too.
none, scale = torch.ones(3, 0), torch.ones(3, 1)
split_rows(none, out=(none.clone(), scale))
assert not scale.any()
# What the page says of an op without a backward.
wanting = torch.ones(3, 8, requires_grad=True)
assert not any(result.requires_grad for result in split_rows(wanting))
half, _ = ops.split_rows(wanting)
assert half.requires_grad
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    half.sum().backward()
assert any("autograd kernel was not registered" in str(warning.message) for warning in caught)
assert wanting.grad is None
for wrong in ((out[1], out[1]), (out[0], out[0]), (out[0].float(), out[1]), (out[0], out[1].half())):
    try:
        split_rows(x, out=wrong)
    except RuntimeError as error:
        assert "split_rows: " in str(error)
    else:
        raise AssertionError(wrong)
"""


def own_python(page: Path) -> list[Block]:
    return [
        block
        for block in blocks("python")
        if block.page == page and block.source is None and not block.text.startswith("# file: ")
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if own_python(page)], ids=lambda page: page.stem)
def test_python_runs(project: Path, models: Client, page: Path) -> None:
    code = "\n".join(block.text for block in own_python(page))
    run(models.python, "-c", code, env=environment(project), cwd=project)


ARGUMENTS = {
    "micro_benchmark.py": [
        "--path", ".", "--function", "rms_norm", "--shape", "8", "256",
        "--eager", "torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)",
    ],
    "transformers_injection.py": ["--path", "."],
    "diffusers_injection.py": ["--path", ".", "--layers", "1"],
    "hub_example.py": ["--repo", "my-org/my-norm", "--function", "rms_norm"],
}  # fmt: skip


def test_every_script_is_run() -> None:
    assert {*ARGUMENTS, "all.sh", "resource_usage.py"} == {script.name for script in SCRIPTS}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_scripts_run(project: Path, models: Client, name: str) -> None:
    script = SKILL / "scripts" / name
    assert run(models.python, script, *ARGUMENTS[name], env=environment(project), cwd=project)


WRONG = """

def rms_norm(*arguments, true=rms_norm, **keywords):
    return 1.1 * true(*arguments, **keywords)
"""


@pytest.mark.parametrize("name", ["transformers_injection.py", "diffusers_injection.py"])
def test_an_injected_kernel_that_is_wrong_is_seen(
    project: Path, models: Client, tmp_path: Path, name: str
) -> None:
    root = Path(shutil.copytree(project, tmp_path / "my-norm"))
    functional = root / "build" / VARIANTS[0] / "functional.py"
    functional.chmod(0o644)
    functional.write_text(functional.read_text() + WRONG)
    argv: list[str | Path] = [models.python, SKILL / "scripts" / name, *ARGUMENTS[name]]
    done = subprocess.run(argv, env=environment(root), cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "rounding adds up over the layers" in done.stderr


QUANTIZE = """

def quantize(x):
    import torch

    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale).to(torch.int8), scale
"""


@pytest.fixture(scope="module")
def two_results(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built project, whose CPU variant has a function with two results besides, one of them int8."""
    root = Path(shutil.copytree(project, tmp_path_factory.mktemp("two") / "my-norm"))
    package = root / "build" / VARIANTS[0] / "__init__.py"
    package.chmod(0o644)
    package.write_text(package.read_text() + QUANTIZE)
    return root


def test_the_micro_benchmark_takes_two_results(two_results: Path, models: Client) -> None:
    def measured(eager: str) -> subprocess.CompletedProcess[str]:
        script = SKILL / "scripts" / "micro_benchmark.py"
        argv: list[str | Path] = [
            models.python,
            script,
            "--path",
            ".",
            "--function",
            "quantize",
            "--shape",
            "8",
            "256",
            "--eager",
            eager,
        ]
        env = environment(two_results)
        return subprocess.run(argv, env=env, cwd=two_results, capture_output=True, text=True, check=False)

    scale = "x.abs().amax(-1, keepdim=True) / 127"
    right = measured(f"(torch.round(x / ({scale})), {scale})")
    assert right.returncode == 0, right.stdout + right.stderr
    assert re.search(r"float64: \S+, \S+\n", right.stdout)
    assert "not worth timing" in measured(f"(x / ({scale}) + 1, {scale})").stderr
    assert "not worth timing" in measured(f"(torch.round(x / ({scale})), 2 * {scale})").stderr
    assert "other shapes" in measured(f"torch.round(x / ({scale}))").stderr


@pytest.mark.parametrize(("exact", "code"), [("rounded", 0), ("unrounded", 1)])
def test_a_benchmark_of_two_results(
    two_results: Path, tmp_path: Path, models: Client, exact: str, code: int
) -> None:
    """As benchmarking.md says: tuples in one order, and integers against rounded ones."""
    root = Path(shutil.copytree(two_results, tmp_path / "my-norm"))
    (root / "benchmarks" / "quantize.py").write_text(BENCHMARK.replace("EXACT", exact))
    path = os.pathsep.join([str(models.python.parent), os.environ["PATH"]])
    checked = kbuild("bench", root, "--check", "-k", "quantize", "--json", env={"PATH": path})
    assert checked.code == code, checked.stdout + checked.stderr
    errors = {column["name"]: column["error"] for column in checked.json()["results"][0]["columns"]}
    assert (errors["ours"] > 5e-3) == (exact == "unrounded")
    assert set(errors) == {"eager", "ours"}


BENCHMARK = """
import torch
from kbuild.harness import Operation, nbytes, normal


def unrounded(x):
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    return x.double() / scale, scale


def rounded(x):
    q, scale = unrounded(x)
    return torch.round(q), scale


def operations(kernel, reference):
    yield Operation(
        name="quantize",
        shapes=[(64, 1024)],
        inputs=lambda shape, dtype: (normal(*shape, dtype=dtype),),
        moved=lambda x: nbytes(x) + x.numel() + 4 * x.shape[0],
        exact=EXACT,
        ours=kernel.quantize,
        eager=kernel.quantize,
    )
"""


def test_the_bytes_that_a_smaller_result_moves(models: Client) -> None:
    page = (SKILL / "references" / "benchmarking.md").read_text()
    gate, quantized = re.findall(r"`(lambda x: nbytes[^`]+)`", page)
    code = f"""
import torch
from kbuild.harness import nbytes
x = torch.ones(3, 5, 8, dtype=torch.bfloat16)
assert ({gate})(x) == nbytes(x, torch.ones(3, 5, 4, dtype=torch.bfloat16))
assert ({quantized})(x) == nbytes(x, torch.ones(3, 5, 8, dtype=torch.int8), torch.ones(3, 5, 1))
"""
    run(models.python, "-c", code, env={"PYTHONPATH": str(ROOT)}, cwd=ROOT)


@pytest.mark.parametrize("named", [None, "torch212-cxx11-cu132-x86_64-linux"])
def test_all_in_one_go(project: Path, models: Client, named: str | None) -> None:
    """Without a GPU: checks, builds the CPU and a CUDA variant, and tests the former."""
    tools = ROOT / ".venv" / "bin"
    env = environment(project, models.python.parent, tools)
    argv: list[str | Path] = ["bash", SKILL / "scripts" / "all.sh", project, *([named] if named else [])]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cuda = named or VARIANTS[1]
    assert all(name in done.stdout for name in (VARIANTS[0], cuda))
    assert f"compiled ({cuda}) and not run" in done.stderr


def test_all_in_one_go_of_python_alone(tmp_path: Path, models: Client) -> None:
    root = silu(tmp_path, noarch=True)
    env = environment(root, models.python.parent, ROOT / ".venv" / "bin")
    argv: list[str | Path] = ["bash", SKILL / "scripts" / "all.sh", root]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU here: nothing was compiled" in done.stderr
