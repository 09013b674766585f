"""Runs the code of the skill triton-kernels, in a Python with PyTorch and Triton; needs neither kbuild nor pytest.

    triton_pages.py run SKILL PROJECTS       against float64: on a GPU where there is one, else set TRITON_INTERPRET=1
    triton_pages.py compile SKILL PROJECTS   for every architecture, and what the pages say of the compiler; no GPU

PROJECTS holds my-silu and (to compile) my-norm, as `kbuild init --noarch` writes them.
"""

# ruff: noqa: A002, N803  (Triton's own style of kernels)
# mypy: ignore-errors

import importlib
import importlib.util
import re
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
OPS = """
import torch
ops = torch.ops.page
def add_op_namespace_prefix(name): return f"page::{name}"
"""


def python_blocks(skill):
    for page in sorted(skill.rglob("*.md")):
        yield from re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def load(name, text, folder):
    """A module of a file: Triton reads the source of its kernels."""
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_module(skill, folder):
    own = [text for text in python_blocks(skill) if not text.startswith("# ")]
    assert len(own) == 3
    return load("page", "\n\n".join(own), folder)


def close(actual, exact):
    tolerance = {torch.float32: 4e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[actual.dtype]
    torch.testing.assert_close(actual.double(), exact, rtol=tolerance, atol=1e-6)


def around(shape, dtype):
    """An output between sevens, and a function that asserts that these are left."""
    size = torch.Size(shape).numel()
    whole = torch.full((size + 128,), 7, device=DEVICE, dtype=dtype)

    def untouched():
        assert (whole[:64] == 7).all()
        assert (whole[64 + size :] == 7).all()

    return whole[64 : 64 + size].view(shape), untouched


def check_gate(page):
    for dtype in DTYPES:
        for rows, width in ((3, 7), (2, 1024), (5, 1500), (0, 8)):
            x = torch.randn(rows, 2 * width, device=DEVICE).to(dtype)
            out, untouched = around((rows, width), dtype)
            page.gate(out, x)
            gate, up = x.double().chunk(2, -1)
            close(out, gate / (1 + torch.exp(-gate)) * up)
            untouched()


def check_quantize(page):
    for dtype in DTYPES:
        for rows, hidden in ((3, 1), (4, 100), (2, 4096), (1, 5000), (0, 8)):
            x = torch.randn(rows, hidden, device=DEVICE).to(dtype)
            x[rows // 2 :] = (x[rows // 2 :] * 4).round() / 2  # ties
            q, untouched = around((rows, hidden), torch.int8)
            scale, _ = around((rows, 1), torch.float32)
            page.quantize(q, scale, x)
            exact = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-10).cpu() / 127
            torch.testing.assert_close(scale.cpu(), exact, rtol=1e-6, atol=0)
            assert torch.equal(q.cpu(), torch.round(x.float().cpu() / scale.cpu()).to(torch.int8))
            untouched()


def check_autotune(page):
    tuner = page.scale_kernel
    tried = []
    if not GPU:  # the benchmark of trials needs one
        tuner.do_bench = lambda call, quantiles: tried.append(call()) or (1.0, 1.0, 1.0)
    for n in (0, 1, 1000, 5000):
        x = torch.randn(n, device=DEVICE)
        exact = x * 3
        page.scale(x, x, 3.0)
        assert torch.equal(x, exact), "trials in place leave no trace"
    assert GPU or len(tried) == 2 * 3, "each configuration, for each class of lengths"
    assert len(tuner.cache) == 3


def check_triton_op(skill, projects, folder):
    (text,) = (text for text in python_blocks(skill) if text.startswith("# file: functional.py\n"))
    package = Path(shutil.copytree(projects / "my-silu" / "torch-ext" / "my_silu", folder / "my_silu"))
    (package / "functional.py").write_text(text)
    (package / "_ops.py").write_text(OPS)
    sys.path.insert(0, str(folder))
    silu = importlib.import_module("my_silu").silu
    x = torch.randn(33, 100, device=DEVICE)
    exact = importlib.import_module("my_silu.reference").silu(x)
    close(silu(x), exact)
    if GPU:
        close(torch.compile(silu, fullgraph=True)(x), exact)


def check_report(skill, page):
    """On a GPU alone: the interpreter compiles nothing."""
    (text,) = (text for text in python_blocks(skill) if text.startswith("# gpu: "))
    x = torch.randn(4096, device=DEVICE, dtype=torch.bfloat16)
    names = {"kernel": page.gate_kernel, "grid": (1, 2), "arguments": (x[:2048], x, 2048, 1024)}
    exec(text, names)
    assert "v4" in names["compiled"].asm["ptx"]
    assert names["compiled"].n_spills == 0


def run(skill, projects, folder):
    assert GPU or triton.knobs.runtime.interpret, "neither a GPU nor TRITON_INTERPRET=1"
    torch.manual_seed(0)
    page = page_module(skill, folder)
    check_gate(page)
    check_quantize(page)
    check_autotune(page)
    check_triton_op(skill, projects, folder)
    if GPU:
        check_report(skill, page)


def ptx(kernel, types, constants, *, unaligned=(), arch=90, warps=4):
    """What `kernel` compiles to, all arguments divisible by 16 but those named."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = [name for name in types if types[name] != "fp32" and name not in unaligned]
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    target = GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options={"num_warps": warps}).asm["ptx"]


def accesses(text):
    return set(re.findall(r"(?:ld|st)\.global\.(\S+)", text))


def compile_kernels(skill, projects, folder):
    page = page_module(skill, folder)
    silu, norm = (
        load(name, (projects / f"my-{name}/torch-ext/my_{name}/triton_kernel.py").read_text(), folder)
        for name in ("silu", "norm")
    )
    for arch in ARCHITECTURES:
        for dtype in ("*fp32", "*fp16", "*bf16"):
            tensors = {"out": dtype, "input": dtype}
            rows = {**tensors, "weight": dtype, "hidden": "i32", "eps": "fp32"}
            wide = {"v4.b32"}
            for kernel, types, constants, length in (
                (silu.elementwise, {**tensors, "n": "i32"}, {"BLOCK": 1024}, "n"),
                (norm.in_registers, {**rows, "rows": "i32"}, {"ROWS": 1, "COLUMNS": 4096}, "hidden"),
                (norm.in_passes, rows, {"PASSES": 3, "PASS": 8192}, "hidden"),
                (page.gate_kernel, {**tensors, "width": "i32"}, {"BLOCK": 1024}, "width"),
            ):
                varying = ["rows"] if "rows" in types else []
                warps = 16 if kernel is norm.in_passes else 4
                found = accesses(ptx(kernel, types, constants, unaligned=varying, arch=arch, warps=warps))
                assert found == wide, (kernel, arch, dtype, found)
                narrow = accesses(
                    ptx(kernel, types, constants, unaligned=[length, *varying], arch=arch, warps=warps)
                )
                assert not any("v" in access for access in narrow), (
                    "a length that is not known to be divisible"
                )
            types = {"q": "*i8", "scale": "*fp32", "input": dtype, "hidden": "i32"}
            quantize = ptx(page.quantize_kernel, types, {"COLUMNS": 4096}, arch=arch, warps=8)
            assert "div.rn." in quantize
            types = {**tensors, "n": "i32", "factor": "fp32", "size_class": "i32"}
            assert accesses(ptx(page.scale_kernel.fn, types, {"BLOCK": 1024}, arch=arch)) == wide


@triton.jit
def sums(out, input, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.store(out + c, tl.sum(tl.load(input + c), axis=0))


@triton.jit
def divides(out, input, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    x = tl.load(input + c).to(tl.float32)
    tl.store(out + c, x / (1.0 + x))


@triton.jit
def largest(out, input, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.store(out + c, tl.max(tl.load(input + c).to(tl.float32), axis=0))


@triton.jit
def exponential(out, input, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.store(out + c, tl.exp(tl.load(input + c)))


@triton.jit
def not_constant(out, input, n, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, n), 0.0)


@triton.jit
def branches(out, input, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    if tl.load(input + c) > 0:
        tl.store(out + c, 0.0)


@triton.jit
def accumulates(out, input, n, BLOCK: tl.constexpr):
    total = 0
    for _ in range(0, n, BLOCK):
        total += tl.load(input + tl.arange(0, BLOCK))
    tl.store(out + tl.arange(0, BLOCK), total)


FACTOR = 3


@triton.jit
def reads_a_global(out, input, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.store(out + c, tl.load(input + c) * FACTOR)


HALVES = {"out": "*fp16", "input": "*fp16", "n": "i32"}
REFUSED = {
    "arange's range must be a power of 2": (exponential, 100),
    "arange's arguments must be of type tl.constexpr": (not_constant, 128),
    "Expected dtype ['fp32', 'fp64'] but got fp16": (exponential, 128),
    "Boolean value of Tensor with more than one value is ambiguous": (branches, 128),
    "Loop-carried variable": (accumulates, 128),
    "exceeds triton maximum tensor numel": (exponential, 1 << 21),
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS": (reads_a_global, 128),
}
# Said by what runs on a GPU, or without one where one is needed: these are looked for in Triton's own source.
SAID = {
    "Failed to find C compiler",
    "cannot be accessed from Triton",
    "out of resource: ",
    "active drivers (",
    "Cannot call @triton.jit'd outside of the scope of a kernel",
}


def refusal(kernel, block):
    try:
        ptx(kernel, HALVES, {"BLOCK": block})
    except Exception as error:
        return str(error)
    raise AssertionError(f"{kernel} compiled")


def check_compiler(skill):
    """The tables of dtypes, messages and specialization."""
    assert "add.f16" in ptx(sums, HALVES, {"BLOCK": 128})
    assert re.search(r"div\.(full|approx)\.f32", ptx(divides, HALVES, {"BLOCK": 128}))
    assert "max.NaN" not in ptx(largest, HALVES, {"BLOCK": 128})
    page = (skill / "references" / "troubleshooting.md").read_text()
    for message, (kernel, block) in REFUSED.items():
        assert f"`{message}`" in page, message
        said = refusal(kernel, block)
        assert message in said, said
    folder = Path(triton.__file__).parent
    sources = "\n".join(file.read_text() for end in ("py", "c") for file in folder.rglob(f"*.{end}"))
    for message in SAID:
        assert message in sources, message
    stated = set(re.findall(r"^\| `([^`]+)`", page.partition("## Wrong")[0], re.MULTILINE))
    assert len(stated) == len(REFUSED) + len(SAID) + 2, (
        "beside these: no Triton, and an older one under a newer NumPy"
    )


def check_specialization():
    from triton._C.libtriton import native_specialize_impl as key_of
    from triton.backends.nvidia.compiler import CUDABackend

    def keys(values, *, specialize=True):
        return {key_of(CUDABackend, value, False, specialize, True) for value in values}

    assert len(keys(range(1, 1000))) == 3
    assert len(keys([1, 7, 16, 2**31 + 1, 2**40])) == 5
    assert len(keys([1, 7, 16], specialize=False)) == 1
    assert len(keys([0.0, 1.0, 1.5, 16.0])) == 1
    assert len(keys([True, False])) == 1
    x = torch.empty(64)
    assert len(keys([x, x[1:], x[4:], x.half(), None])) == 4


def main(mode, skill, projects):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if mode == "run":
            run(Path(skill), Path(projects), folder)
            sys.stdout.write(
                f"the code of the pages ran on the {'GPU' if GPU else 'CPU, in the interpreter'}\n"
            )
        else:
            compile_kernels(Path(skill), Path(projects), folder)
            check_compiler(Path(skill))
            check_specialization()


if __name__ == "__main__":
    main(*sys.argv[1:])
