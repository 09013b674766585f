"""Run with the built kernel loaded as users load it: `kbuild test`."""

import importlib
from pathlib import Path

import pytest
import torch
from kernels import (
    LocalLayerRepository,
    Mode,
    get_kernel,
    kernelize,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# NB: named, since a PyTorch built for CUDA loads the CUDA build on a machine without a GPU too.
kernel = get_kernel("@{org}/@{name}", version=1, trust_remote_code=True, backend=DEVICE)
reference = importlib.import_module(kernel.__name__ + ".reference")
ops = importlib.import_module(kernel.__name__ + "._ops").ops

# One rounding to the dtype, and the float32 arithmetic before it.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
EVERY_DTYPE = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
SHAPES = [(), (0,), (1,), (7,), (127,), (4095,), (3, 1025), (64, 64, 65)]


def assert_rounded(actual, exact):
    assert actual.shape == exact.shape
    torch.testing.assert_close(actual.double(), exact, rtol=TOLERANCE[actual.dtype], atol=1e-6)


@EVERY_DTYPE
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_float64(dtype, shape):
    x = torch.randn(shape, device=DEVICE, dtype=dtype) * 4
    y = kernel.@{function}(x)
    assert y.dtype == dtype
    assert_rounded(y, reference.@{function}(x))


@EVERY_DTYPE
def test_strided_and_misaligned_input(dtype):
    wide = torch.randn(33, 130, device=DEVICE, dtype=dtype)
    for x in (wide[:, ::2], wide.T, wide.flatten()[1:]):
        assert_rounded(kernel.@{function}(x), reference.@{function}(x))


@EVERY_DTYPE
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_writes_out_and_nothing_beside_it(dtype, offset):
    x = torch.randn(1001, device=DEVICE, dtype=dtype)
    around = torch.full((1200,), 7.0, device=DEVICE, dtype=dtype)
    out = around[64 + offset : 64 + offset + 1001]
    assert kernel.@{function}(x, out=out) is out
    assert_rounded(out, reference.@{function}(x))
    assert (around[: 64 + offset] == 7).all()
    assert (around[64 + offset + 1001 :] == 7).all()


def test_special_values():
    x = torch.tensor([float("nan"), float("inf"), 0.0, 1e30], device=DEVICE)
    y = kernel.@{function}(x)
    assert y[0].isnan()
    assert torch.equal(y[1:], x[1:])


def test_gradient():
    x = torch.randn(5, 77, device=DEVICE, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    grad = torch.randn_like(x)
    kernel.@{function}(x).backward(grad)
    reference.@{function}(exact).backward(grad.double())
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


def test_declares_what_it_does():
    x = torch.randn(3, 40, device=DEVICE)
    torch.library.opcheck(ops.@{function}.default, (x.clone().requires_grad_(),))
    torch.library.opcheck(ops.@{function}_out.default, (torch.empty_like(x), x))


def test_compiles_without_a_graph_break():
    x = torch.randn(1024, device=DEVICE)
    compiled = torch.compile(lambda t: kernel.@{function}(t) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), kernel.@{function}(x) + 1)


def test_compiles_once_for_every_length():
    compiled = torch.compile(kernel.@{function}, fullgraph=True, dynamic=True, backend="aot_eager")
    compiled(torch.randn(16, 40, device=DEVICE))
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (2, 17, 300):
            x = torch.randn(rows, 40, device=DEVICE)
            assert_rounded(compiled(x), reference.@{function}(x))


def test_compiles_with_out():
    def into(t, out):
        kernel.@{function}(t, out=out)
        return out + 1

    x, out = torch.randn(1024, device=DEVICE), torch.zeros(1024, device=DEVICE)
    result = torch.compile(into, fullgraph=True, backend="aot_eager")(x, out)
    assert_rounded(out, reference.@{function}(x))
    assert torch.equal(result, out + 1)


def test_layer():
    x = torch.randn(3, 40, device=DEVICE)
    assert torch.equal(kernel.layers.@{layer}()(x), kernel.@{function}(x))


def test_kernelize_takes_the_layer():
    @use_kernel_forward_from_hub("@{layer}")
    class Activation(torch.nn.Module):
        def forward(self, input):
            raise AssertionError("was not replaced")

    model = torch.nn.Sequential(Activation())
    repository = LocalLayerRepository(Path(kernel.__file__).parent, layer_name="@{layer}")
    with use_kernel_mapping({"@{layer}": {DEVICE: repository}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device=DEVICE, use_fallback=False)
    x = torch.randn(3, 40, device=DEVICE)
    assert torch.equal(model(x), kernel.@{function}(x))


def test_refuses_what_it_cannot_do():
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="@{function}: input must be float32, float16 or bfloat16"):
        kernel.@{function}(x.int())
    with pytest.raises(RuntimeError, match="shape"):
        kernel.@{function}(x, out=torch.empty(4, device=DEVICE))
    with pytest.raises(RuntimeError, match="dtype"):
        kernel.@{function}(x, out=torch.empty(3, device=DEVICE, dtype=torch.float16))
@% if cuda %@


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_runs_on_the_current_stream():
    x = torch.zeros(1 << 20, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        x.add_(1)
        y = kernel.@{function}(x)
    torch.cuda.synchronize()
    assert_rounded(y, reference.@{function}(torch.ones_like(x)))


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_more_than_two_to_the_31_elements():
    n = 2**31 + 9
    if torch.cuda.mem_get_info()[0] < 10 * n:
        pytest.skip("needs 20 GB of GPU memory")
    x = torch.empty(n, device=DEVICE, dtype=torch.bfloat16).normal_()
    y = kernel.@{function}(x)
    for part in (slice(0, 9), slice(n - 9, n)):
        assert_rounded(y[part], reference.@{function}(x[part]))
@% endif %@
