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
HIDDEN = [1, 7, 8, 24, 64, 127, 128, 256, 1000, 2048, 4095, 4096, 8192, 12289, 16384, 40960]


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype)


def assert_rounded(actual, exact):
    assert actual.shape == exact.shape
    torch.testing.assert_close(actual.double(), exact, rtol=TOLERANCE[actual.dtype], atol=1e-6)


@EVERY_DTYPE
@pytest.mark.parametrize("hidden", HIDDEN)
def test_matches_float64(dtype, hidden):
    x = normal(5, hidden, dtype=dtype)
    for weight in (None, normal(hidden, dtype=dtype)):
        y = kernel.@{function}(x, weight, 1e-5)
        assert y.dtype == dtype
        assert_rounded(y, reference.@{function}(x, weight, 1e-5))


@pytest.mark.parametrize("shape", [(4096,), (2, 3, 5, 128), (1, 77, 64), (0, 128), (3, 0)])
def test_any_leading_shape(shape):
    x = normal(*shape)
    assert_rounded(kernel.@{function}(x), reference.@{function}(x))


@EVERY_DTYPE
def test_strided_and_misaligned_input(dtype):
    wide = normal(33, 130, dtype=dtype)
    weight = normal(131, dtype=dtype)
    for x in (wide[:, ::2], wide.T, wide[:, 1:], wide.flatten()[1:129]):
        w = weight[1 : x.shape[-1] + 1]
        assert_rounded(kernel.@{function}(x, w), reference.@{function}(x, w))


@EVERY_DTYPE
@pytest.mark.parametrize("hidden", [127, 128])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_writes_out_and_nothing_beside_it(dtype, hidden, offset):
    x = normal(9, hidden, dtype=dtype)
    around = torch.full((9 * hidden + 200,), 7.0, device=DEVICE, dtype=dtype)
    end = 64 + offset + x.numel()
    out = around[64 + offset : end].view(x.shape)
    assert kernel.@{function}(x, out=out) is out
    assert_rounded(out, reference.@{function}(x))
    assert (around[: 64 + offset] == 7).all()
    assert (around[end:] == 7).all()


# A block of threads takes several short rows; the last one of these is not full.
@EVERY_DTYPE
@pytest.mark.parametrize("rows", [1, 31, 33, 515])
@pytest.mark.parametrize("hidden", [8, 24, 128])
def test_any_number_of_short_rows(dtype, rows, hidden):
    x, weight = normal(rows, hidden, dtype=dtype), normal(hidden, dtype=dtype)
    assert_rounded(kernel.@{function}(x, weight), reference.@{function}(x, weight))


@EVERY_DTYPE
@pytest.mark.parametrize("hidden", [127, 4096])
def test_in_place(dtype, hidden):
    x = normal(4, hidden, dtype=dtype)
    expected = reference.@{function}(x)
    assert_rounded(kernel.@{function}(x, out=x), expected)


def test_special_values():
    x = normal(3, 256)
    x[1] = 0
    x[2, 17] = float("nan")
    y = kernel.@{function}(x)
    assert_rounded(y[0], reference.@{function}(x[0]))
    assert (y[1] == 0).all()
    assert y[2].isnan().all()


@pytest.mark.parametrize("weighted", [True, False])
def test_gradients(weighted):
    x = normal(7, 77).requires_grad_()
    weight = normal(77).requires_grad_() if weighted else None
    exact = x.detach().double().requires_grad_()
    exact_weight = weight.detach().double().requires_grad_() if weighted else None
    grad = normal(7, 77)
    kernel.@{function}(x, weight).backward(grad)
    reference.@{function}(exact, exact_weight).backward(grad.double())
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)
    if weighted:
        torch.testing.assert_close(weight.grad.double(), exact_weight.grad, rtol=1e-4, atol=1e-5)


def test_declares_what_it_does():
    x, weight = normal(3, 40), normal(40)
    torch.library.opcheck(
        ops.@{function}.default, (x.clone().requires_grad_(), weight.clone().requires_grad_(), 1e-6)
    )
    torch.library.opcheck(ops.@{function}_out.default, (torch.empty_like(x), x, weight, 1e-6))


def test_compiles_without_a_graph_break():
    x, weight = normal(16, 256), normal(256)
    compiled = torch.compile(lambda t: kernel.@{function}(t, weight) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), kernel.@{function}(x, weight) + 1)


def test_compiles_once_for_every_length():
    weight = normal(256)
    compiled = torch.compile(
        lambda t: kernel.@{function}(t, weight), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    compiled(normal(16, 256))
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (2, 17, 300):
            x = normal(rows, 256)
            assert_rounded(compiled(x), reference.@{function}(x, weight))


def test_compiles_with_out():
    def into(t, out):
        kernel.@{function}(t, out=out)
        return out + 1

    x, out = normal(16, 256), torch.zeros(16, 256, device=DEVICE)
    result = torch.compile(into, fullgraph=True, backend="aot_eager")(x, out)
    assert_rounded(out, reference.@{function}(x))
    assert torch.equal(result, out + 1)


@EVERY_DTYPE
def test_layer(dtype):
    layer = kernel.layers.@{layer}()
    layer.weight = torch.nn.Parameter(normal(256, dtype=dtype))
    layer.variance_epsilon = 1e-5
    x = normal(3, 256, dtype=dtype)
    assert torch.equal(layer(x), kernel.@{function}(x, layer.weight, 1e-5))
    layer.weight = torch.nn.Parameter(normal(256))
    mixed = layer(x)
    assert mixed.dtype == torch.float32, "as PyTorch promotes the product"
    torch.testing.assert_close(
        mixed.double(), reference.@{function}(x, layer.weight, 1e-5), rtol=TOLERANCE[dtype], atol=1e-6
    )


def assert_as_in_the_model(actual, expected, dtype):
    """The model rounds to `dtype` before it multiplies by the weight, the kernel once."""
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=2 * TOLERANCE[dtype], atol=1e-6)


@EVERY_DTYPE
@pytest.mark.parametrize("mixed", [False, True], ids=["one-dtype", "float32-weight"])
def test_layer_has_the_formula_of_qwen3(dtype, mixed):
    layer = kernel.layers.@{layer}()
    layer.weight = torch.nn.Parameter(normal(128, dtype=torch.float32 if mixed else dtype))
    layer.variance_epsilon = 1e-5
    x = normal(2, 5, 8, 128, dtype=dtype)
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon)
    assert_as_in_the_model(layer(x), layer.weight * y.to(dtype), dtype)


def test_layer_takes_the_place_of_the_one_of_transformers():
    qwen3 = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    for dtype in TOLERANCE:
        theirs = qwen3.Qwen3RMSNorm(128, eps=1e-5).to(DEVICE, dtype)
        torch.nn.init.normal_(theirs.weight)
        x = normal(2, 5, 8, 128, dtype=dtype)
        # As `kernelize` does: with the model's module as self.
        assert_as_in_the_model(kernel.layers.@{layer}.forward(theirs, x), theirs(x), dtype)


def test_kernelize_takes_the_layer():
    @use_kernel_forward_from_hub("@{layer}")
    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(normal(256))
            self.variance_epsilon = 1e-5

        def forward(self, hidden_states):
            raise AssertionError("was not replaced")

    model = torch.nn.Sequential(Norm())
    repository = LocalLayerRepository(Path(kernel.__file__).parent, layer_name="@{layer}")
    with use_kernel_mapping({"@{layer}": {DEVICE: repository}}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE, device=DEVICE, use_fallback=False)
    x = normal(3, 256)
    assert_rounded(model(x), reference.@{function}(x, model[0].weight, 1e-5))


def test_refuses_what_it_cannot_do():
    x = normal(4, 8)
    with pytest.raises(RuntimeError, match="@{function}: input must be float32, float16 or bfloat16"):
        kernel.@{function}(x.int())
    with pytest.raises(RuntimeError, match="weight must have shape"):
        kernel.@{function}(x, normal(7))
    with pytest.raises(RuntimeError, match="weight must have the dtype of input"):
        kernel.@{function}(x, normal(8).half())
    with pytest.raises(RuntimeError, match="out must have the shape of input"):
        kernel.@{function}(x, out=normal(4, 9))
@% if cuda %@


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_runs_on_the_current_stream():
    x = torch.zeros(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        x.add_(1)
        y = kernel.@{function}(x)
    torch.cuda.synchronize()
    assert_rounded(y, reference.@{function}(torch.ones_like(x)))


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("hidden", [8, 4096, 2**20])
def test_more_than_two_to_the_31_elements(hidden):
    rows = 2**31 // hidden + 5
    if torch.cuda.mem_get_info()[0] < 5 * rows * hidden:
        pytest.skip("needs 11 GB of GPU memory")
    x = torch.empty(rows, hidden, device=DEVICE, dtype=torch.bfloat16).normal_()
    y = kernel.@{function}(x)
    for part in (slice(0, 3), slice(rows - 3, rows)):
        assert_rounded(y[part], reference.@{function}(x[part]))


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_a_row_of_more_than_two_to_the_31_elements():
    hidden = 2**31 + 9
    if torch.cuda.mem_get_info()[0] < 5 * hidden:
        pytest.skip("needs 11 GB of GPU memory")
    x = torch.ones(hidden, device=DEVICE, dtype=torch.bfloat16)
    x[-9:] = 2
    y = kernel.@{function}(x)  # the mean of the squares is 1, but for 1e-8
    for part in (slice(0, 9), slice(hidden - 9, hidden)):
        assert_rounded(y[part], x[part].double())
@% endif %@
