"""Runs the code of the skill triton-kernels, in a Python with PyTorch and Triton; needs neither kbuild nor pytest.

    triton_pages.py run PROJECTS       against float64: on a GPU where there is one, else set TRITON_INTERPRET=1
    triton_pages.py compile PROJECTS   for every architecture, and what the pages say of the compiler; no GPU

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
import warnings
from pathlib import Path

import torch
import triton
import triton.language as tl

SKILL = Path(__file__).parents[2] / "kbuild" / "data" / "skills" / "triton-kernels"
sys.path.insert(0, str(SKILL / "scripts"))
from inspect_kernel import accesses, compiled, resources  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
OPS = """
import torch
ops = torch.ops.page
def add_op_namespace_prefix(name): return f"page::{name}"
"""


def python_blocks():
    for page in sorted(SKILL.rglob("*.md")):
        yield from re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def load(name, text, folder):
    """A module of a file: Triton reads the source of its kernels."""
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_module(folder):
    own = [text for text in python_blocks() if not text.startswith("# ")]
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
        # Beside them: several rows a program, one column, blocks of every alignment, more rows than 65535.
        for rows, width in (
            (3, 7),
            (2, 1024),
            (5, 1500),
            (0, 8),
            (3, 0),
            (33, 128),
            (1500, 1),
            (2, 3002),
            (66000, 2),
        ):
            x = torch.randn(rows, 2 * width, device=DEVICE).to(dtype)
            out, untouched = around((rows, width), dtype)
            page.gate(out, x)
            gate, up = x.double().chunk(2, -1)
            close(out, gate / (1 + torch.exp(-gate)) * up)
            untouched()


def check_gate_tiles(page):
    """Every element has a program, the grid's one dimension has room, and lengths compile few variants."""
    variants = set()
    for width in [*range(1, 5000), 2**31 + 9]:
        for rows in (1, 7, 70000, 2**33 // width + 1):
            programs, constants = page.gate_tiles(rows, width)
            columns, align = constants["COLUMNS"], constants["ALIGN"]
            assert programs * constants["ROWS"] * columns >= rows * width
            assert programs < 2**31 or rows * width > 2**39  # a terabyte of bfloat16
            assert width % align == 0
            assert columns == 1024 or columns >= width > columns // 2
            variants.add(tuple(constants.values()))
    assert len(variants) == 1 + 1 + 2 + 3 + 4 * 7


def check_interpreter(page):
    """What the pages say of it."""
    x = torch.tensor([1 + 2**-8 + 2**-9, 0.0], device=DEVICE)
    out = torch.empty(2, device=DEVICE, dtype=torch.bfloat16)
    page.scale(out, x, 1.0)
    assert out[0] == 1, "rounded it is 1 + 2**-7"
    x = torch.tensor([[-1000.0, 1.0]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        page.gate(torch.empty(1, 1), x)
    said = [f"{one.category.__name__}: {one.message}" for one in caught]
    assert said == ["RuntimeWarning: overflow encountered in exp"]


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


def check_triton_op(projects, folder):
    (text,) = (text for text in python_blocks() if text.startswith("# file: functional.py\n"))
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


def check_report(page):
    """On a GPU alone: the interpreter compiles nothing."""
    (text,) = (text for text in python_blocks() if text.startswith("# gpu: "))
    x = torch.randn(4096, device=DEVICE, dtype=torch.bfloat16)
    names = {"kernel": page.gate_kernel, "grid": (2,), "arguments": (x[:2048], x, 1, 256, 8, 1, 1024)}
    exec(text, names)
    assert "v4" in names["compiled"].asm["ptx"]
    assert names["compiled"].n_spills == 0


def run(projects, folder):
    assert GPU or triton.knobs.runtime.interpret, "neither a GPU nor TRITON_INTERPRET=1"
    torch.manual_seed(0)
    page = page_module(folder)
    check_gate(page)
    check_gate_tiles(page)
    check_quantize(page)
    check_autotune(page)
    check_triton_op(projects, folder)
    if GPU:
        check_report(page)
    else:
        check_interpreter(page)


def ptx(*arguments, **options):
    return compiled(*arguments, **options).asm["ptx"]


def widths(*arguments, **options):
    """Of the accesses to global memory."""
    return {access.partition(".global.")[2] for access in accesses(ptx(*arguments, **options))}


@triton.jit
def promised(out, input, n, BLOCK: tl.constexpr):
    n = tl.multiple_of(n, 8)
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(input + offsets, mask=offsets < n)
    tl.store(out + offsets, x, mask=offsets < n)


def check_accesses(page):
    """In units of ALIGN elements accesses are as wide as these; a promise on the argument is not heard."""
    for dtype, by_align in (
        ("*bf16", {1: "b16", 2: "b32", 4: "v2.b32", 8: "v4.b32"}),
        ("*fp16", {1: "b16", 2: "b32", 4: "v2.b32", 8: "v4.b32"}),
        ("*fp32", {1: "b32", 2: "v2.b32", 4: "v4.b32", 8: "v4.b32"}),
    ):
        for align, width in by_align.items():
            for tile in ("1, 1024", "8, 128"):
                signature = f"{dtype}:16, {dtype}:16, i32, i32, {align}, {tile}"
                for arch in ARCHITECTURES:
                    assert widths(page.gate_kernel, signature, arch=arch) == {width}, (arch, signature)
    assert widths(promised, "*bf16:16, *bf16:16, i32, 1024") == {"b16"}


def compile_kernels(projects, folder):
    page = page_module(folder)
    silu, norm = (
        load(name, (projects / f"my-{name}/torch-ext/my_{name}/triton_kernel.py").read_text(), folder)
        for name in ("silu", "norm")
    )
    check_accesses(page)
    for arch in ARCHITECTURES:
        for dtype in ("*fp32:16", "*fp16:16", "*bf16:16"):
            wide = {"v4.b32"}
            for kernel, rest, warps in (
                (silu.elementwise, "i32LENGTH, 1024", 4),
                (norm.in_registers, f"{dtype}, i32, i32LENGTH, fp32, 1, 4096", 4),
                (norm.in_passes, f"{dtype}, i32LENGTH, fp32, 3, 8192", 16),
            ):
                signature = f"{dtype}, {dtype}, {rest}"
                known = compiled(kernel, signature.replace("LENGTH", ":16"), arch=arch, warps=warps)
                found = {access.partition(".global.")[2] for access in accesses(known.asm["ptx"])}
                assert found == wide, (kernel, arch, dtype, found)
                assert resources(known.asm["cubin"])[1] == 0, "nothing spills"
                narrow = widths(kernel, signature.replace("LENGTH", ""), arch=arch, warps=warps)
                assert not any("v" in width for width in narrow), "a length not known to be divisible"
            quantize = ptx(
                page.quantize_kernel, f"*i8:16, *fp32:16, {dtype}, i32:16, 4096", arch=arch, warps=8
            )
            assert "div.rn." in quantize
            scale = f"{dtype}, {dtype}, i32:16, fp32, i32, 1024"
            assert widths(page.scale_kernel, scale, arch=arch) == wide
    long = compiled(norm.in_passes, "*bf16:16, *bf16:16, None, i64, fp32, 262145, 8192", warps=16)
    products = re.findall(r"arith.muli .* : (\S+)", long.asm["ttir"])
    assert set(products) == {"i64"}, "columns beyond 2**31"


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


@triton.jit
def never(out, input, n, BLOCK: tl.constexpr):
    for start in range(0, 2147491840, BLOCK):
        tl.store(out + start + tl.arange(0, BLOCK), 0.0)


FACTOR = 3


@triton.jit
def reads_a_global(out, input, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.store(out + c, tl.load(input + c) * FACTOR)


HALVES = "*fp16:16, *fp16:16, i32:16"
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
        ptx(kernel, f"{HALVES}, {block}")
    except Exception as error:
        return str(error)
    raise AssertionError(f"{kernel} compiled")


def check_compiler():
    """The tables of dtypes, messages and specialization."""
    assert "add.f16" in ptx(sums, f"{HALVES}, 128")
    assert re.search(r"div\.(full|approx)\.f32", ptx(divides, f"{HALVES}, 128"))
    assert "max.NaN" not in ptx(largest, f"{HALVES}, 128")
    assert "st.global" not in ptx(never, f"{HALVES}, 1024")
    page = (SKILL / "references" / "troubleshooting.md").read_text()
    for message, (kernel, block) in REFUSED.items():
        assert f"`{message}`" in page, message
        said = refusal(kernel, block)
        assert message in said, said
    folder = Path(triton.__file__).parent
    sources = "\n".join(file.read_text() for end in ("py", "c") for file in folder.rglob(f"*.{end}"))
    for message in SAID:
        assert message in sources, message
    stated = set(re.findall(r"^\| `([^`]+)`", page.partition("## Wrong")[0], re.MULTILINE))
    assert len(stated) == len(REFUSED) + len(SAID) + 3, (
        "beside these: no Triton, an older one under a newer NumPy, and what its interpreter warns of"
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


def main(mode, projects):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if mode == "run":
            run(Path(projects), folder)
            sys.stdout.write(
                f"the code of the pages ran on the {'GPU' if GPU else 'CPU, in the interpreter'}\n"
            )
        else:
            compile_kernels(Path(projects), folder)
            check_compiler()
            check_specialization()


if __name__ == "__main__":
    main(*sys.argv[1:])
