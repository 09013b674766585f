import importlib

import pytest

torch = pytest.importorskip("torch")

from .checks import DTYPES, assert_rounded, guarded, misaligned, normal  # noqa: E402

HIDDEN = [1, 2, 7, 8, 64, 127, 128, 129, 1000, 2048, 2056, 3072, 4095, 4096, 8192, 12289, 16384, 32768]


@pytest.fixture(scope="session")
def reference(kernel):
    return importlib.import_module(kernel.__name__ + ".reference")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", [1, 3, 37])
def test_matches_float64(kernel, reference, dtype, hidden, rows):
    x = normal(rows, hidden, dtype=dtype, seed=hidden)
    for weight in (None, normal(hidden, dtype=dtype, seed=1), normal(hidden, dtype=torch.float32, seed=1)):
        out = kernel.rms_norm(x, weight)
        assert out.shape == x.shape
        assert out.dtype == dtype
        assert_rounded(out, reference.rms_norm(x, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_add_matches_float64(kernel, reference, dtype, hidden):
    x = normal(5, 3, hidden, dtype=dtype, seed=hidden)
    residual = normal(5, 3, hidden, dtype=dtype, seed=hidden + 1)
    weight = normal(hidden, dtype=dtype, seed=2)
    out, summed = kernel.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(summed, x + residual)
    assert_rounded(out, reference.add_rms_norm(x, residual, weight, 1e-5)[0])


@pytest.mark.parametrize("shape", [(4096,), (2, 3, 4, 128), (1, 1, 4096), (0, 128), (3, 0)])
def test_any_leading_shape(kernel, reference, shape):
    x = normal(*shape, dtype=torch.bfloat16)
    out = kernel.rms_norm(x, None)
    assert out.shape == x.shape
    assert_rounded(out, reference.rms_norm(x)) if x.numel() else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [127, 128, 2048])
def test_strided_rows(kernel, reference, dtype, hidden):
    packed = normal(3, 5, 4, hidden + 16, dtype=dtype)
    weight = normal(hidden, dtype=dtype, seed=1)
    views = [
        packed[..., :hidden],  # evenly spaced rows
        packed[:, :, 1:3, 8 : hidden + 8],  # rows in groups
        packed[:, 1:4, 1:3, 3 : hidden + 3],  # three levels: copied
        packed.transpose(0, 2)[..., :hidden],
        packed[:1].expand(3, 5, 4, hidden + 16)[..., :hidden],
        packed.transpose(2, 3)[..., :4],  # elements that are not neighbours: copied
    ]
    for view in views:
        w = weight[: view.shape[-1]]
        out = kernel.rms_norm(view, w)
        assert out.is_contiguous()
        assert_rounded(out, reference.rms_norm(view, w))
        other = normal(*view.shape, dtype=dtype, seed=3)
        assert_rounded(kernel.add_rms_norm(other, view, w)[0], reference.add_rms_norm(other, view, w)[0])
        assert_rounded(kernel.add_rms_norm(view, view, w)[0], reference.add_rms_norm(view, view, w)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 3, 8])
@pytest.mark.parametrize("hidden", [7, 128, 4096])
def test_writes_its_output_and_nothing_else(kernel, reference, dtype, offset, hidden):
    x = misaligned(normal(9, hidden, dtype=dtype), offset)
    residual = misaligned(normal(9, hidden, dtype=dtype, seed=1), offset)
    weight = misaligned(normal(hidden, dtype=dtype, seed=2), offset)
    out, out_intact = guarded(x.shape, dtype, offset)
    summed, sum_intact = guarded(x.shape, dtype, offset)
    assert kernel.rms_norm(x, weight, out=out) is out
    assert_rounded(out, reference.rms_norm(x, weight))
    out.fill_(float("nan"))
    kernel.add_rms_norm(x, residual, weight, out=(out, summed))
    assert torch.equal(summed, x + residual)
    assert_rounded(out, reference.add_rms_norm(x, residual, weight)[0])
    out_intact()
    sum_intact()


@pytest.mark.parametrize("hidden", [127, 4096, 40000])
def test_strided_and_in_place_output(kernel, reference, hidden):
    x = normal(6, hidden, dtype=torch.bfloat16)
    wide = torch.full((6, 2, hidden + 8), float("nan"), dtype=x.dtype, device="cuda")
    kernel.rms_norm(x, None, out=wide[:, 1, :hidden])
    assert_rounded(wide[:, 1, :hidden], reference.rms_norm(x))
    assert torch.isnan(wide[:, 0]).all()
    assert torch.isnan(wide[:, 1, hidden:]).all()
    expected = reference.rms_norm(x)
    kernel.rms_norm(x, None, out=x)
    assert_rounded(x, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_values(kernel, reference, dtype):
    for scale in (1e-30, 1e-12, 1e12, 1e17):
        x = normal(4, 4096, dtype=dtype, scale=scale)
        assert_rounded(kernel.rms_norm(x, None, 1e-6), reference.rms_norm(x, None, 1e-6))
    zero = torch.zeros(2, 4096, dtype=dtype, device="cuda")
    assert torch.equal(kernel.rms_norm(zero, None), zero)
    x = normal(3, 4096, dtype=dtype)
    x[1, 17] = float("nan")
    x[2, 5] = float("inf")
    out = kernel.rms_norm(x, None)
    assert not torch.isnan(out[0]).any()
    assert torch.isnan(out[1]).all()
    assert torch.isnan(out[2, 5])


def test_non_default_stream_and_graph(kernel, reference):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = normal(64, 4096, dtype=torch.bfloat16)
        torch.cuda._sleep(10_000_000)
        x.add_(1)
        out = kernel.rms_norm(x, None)
        x.zero_()
    stream.synchronize()
    assert_rounded(out, reference.rms_norm(normal(64, 4096, dtype=torch.bfloat16) + 1))
    # Programmatic launch chains grids inside a graph: each must see what the one before it wrote.
    y = normal(64, 4096, dtype=torch.bfloat16)
    expected = y.clone()
    for _ in range(8):
        expected = kernel.rms_norm(expected, None)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = y
        for _ in range(8):
            z = kernel.rms_norm(z, None)
    for _ in range(5):
        z.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(z, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [7, 128, 1000, 2048, 4095, 4096, 8192, 12289])  # of fewer, all cancels
def test_gradients_match_float64(kernel, reference, dtype, hidden):
    for weight_dtype in (dtype, torch.float32, None):
        x = normal(300, hidden, dtype=dtype, seed=hidden).requires_grad_()
        grad = normal(300, hidden, dtype=dtype, seed=2)
        weight = None if weight_dtype is None else normal(hidden, dtype=weight_dtype, seed=1).requires_grad_()
        kernel.rms_norm(x, weight).backward(grad)
        exact_x = x.detach().double().requires_grad_()
        exact_weight = None if weight is None else weight.detach().double().requires_grad_()
        reference.rms_norm(exact_x, exact_weight).backward(grad.double())
        slack = {torch.float32: 20, torch.float16: 2, torch.bfloat16: 2}[dtype]
        scale = exact_x.grad.abs().amax(-1, keepdim=True).clamp_min(1e-6)
        assert_rounded(x.grad / scale.to(dtype), exact_x.grad / scale.to(dtype).double(), slack=4 * slack)
        if weight is not None:
            assert weight.grad.dtype == weight_dtype
            scale = exact_weight.grad.abs().max().clamp_min(1e-6)
            assert ((weight.grad.double() - exact_weight.grad).abs().max() / scale) < (
                1e-5 if weight_dtype == torch.float32 else 1e-2
            )


def test_gradcheck(kernel):
    x = normal(3, 24, dtype=torch.float32).requires_grad_()
    residual = normal(3, 24, dtype=torch.float32, seed=1).requires_grad_()
    weight = normal(24, dtype=torch.float32, seed=2).requires_grad_()
    # The kernel computes in float32: steps are wide, and tolerances those of float32 differences.
    options = {"eps": 1e-2, "atol": 2e-3, "rtol": 2e-2, "nondet_tol": 0.0}
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(lambda x, w: kernel.rms_norm(x, w, 1e-3), (x, weight), **options)
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(
            lambda x, r, w: kernel.add_rms_norm(x, r, w, 1e-3), (x, residual, weight), **options
        )


def test_strided_gradients(kernel, reference):
    packed = normal(4, 6, 3, 136, dtype=torch.float32)
    x = packed[:, :, 1:, :128].requires_grad_()
    grad = normal(4, 2, 6, 128, dtype=torch.float32, seed=1).transpose(1, 2)
    (actual,) = torch.autograd.grad(kernel.rms_norm(x, None), x, grad)
    exact = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(reference.rms_norm(exact), exact, grad.double())
    assert_rounded(actual, expected, slack=20)


def test_compiles_without_breaks_or_storms(kernel):
    def model(x, residual, weight):
        y, s = kernel.add_rms_norm(x, residual, weight)
        return kernel.rms_norm(y * 2, weight) + s

    weight = normal(512, dtype=torch.bfloat16)
    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for rows in (3, 4, 17, 64, 100, 1000):
        x = normal(rows, 512, dtype=torch.bfloat16, seed=rows)
        torch.testing.assert_close(compiled(x, x, weight), model(x, x, weight))
    assert len(compiles) <= 2, "one static and one dynamic graph serve every number of rows"

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    x = normal(33, 512, dtype=torch.float32).requires_grad_()
    w = weight.float().requires_grad_()
    inputs = (x, x.detach(), w)
    actual = torch.autograd.grad(compiled(*inputs).sum(), (x, w))
    expected = torch.autograd.grad(model(*inputs).sum(), (x, w))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_ops_declare_what_they_do(kernel):
    ops = importlib.import_module(kernel.__name__ + "._ops").ops
    x = normal(5, 256, dtype=torch.float32).requires_grad_()
    w = normal(256, dtype=torch.float32, seed=1).requires_grad_()
    out, summed = torch.empty_like(x), torch.empty_like(x)
    torch.library.opcheck(ops.rms_norm.default, (x, w, 1e-6))
    torch.library.opcheck(ops.add_rms_norm.default, (x, x.detach(), w, 1e-6))
    x, w = x.detach(), w.detach()
    torch.library.opcheck(ops.rms_norm_forward.default, (x.T, None, 1e-6))
    torch.library.opcheck(ops.rms_norm_out.default, (out.detach(), x, w, 1e-6))
    torch.library.opcheck(ops.add_rms_norm_forward.default, (x, x, w, 1e-6))
    torch.library.opcheck(
        ops.add_rms_norm_out.default, (out.detach(), summed.detach(), x, x.clone(), w, 1e-6)
    )
    torch.library.opcheck(ops.rms_norm_backward.default, (x, x, w, 1e-6))


def test_refuses_what_it_cannot_do(kernel):
    x = normal(4, 128, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="weight must have shape"):
        kernel.rms_norm(x, x[0, :64])
    with pytest.raises(RuntimeError, match="weight must be float32 or have the dtype of x"):
        kernel.rms_norm(x, x[0].half())
    with pytest.raises(RuntimeError, match="x must be float32, float16 or bfloat16"):
        kernel.rms_norm(x.double(), None)
    with pytest.raises(RuntimeError, match="residual must have the shape of x"):
        kernel.add_rms_norm(x, x[:2], None)
    with pytest.raises(RuntimeError, match="out must have the dtype of x"):
        kernel.rms_norm(x, None, out=x.half())
    with pytest.raises(RuntimeError, match="out: unsupported strides"):
        kernel.rms_norm(x, None, out=torch.empty(128, 4, device="cuda").T)


def test_layer_replaces_the_model_s(kernel):
    layer = kernel.layers.RMSNorm()
    layer.weight = torch.nn.Parameter(normal(4096, dtype=torch.bfloat16))
    layer.variance_epsilon = 1e-6
    x = normal(2, 5, 4096, dtype=torch.bfloat16, seed=1)
    assert torch.equal(layer(x), kernel.rms_norm(x, layer.weight, 1e-6))
    assert layer.has_backward
    assert layer.can_torch_compile


def test_more_than_two_to_the_31_elements(kernel, reference):
    rows = 2**31 // 4096 + 5
    if torch.cuda.mem_get_info()[0] < 5 * rows * 4096:
        pytest.skip("needs 11 GB of GPU memory")
    x = torch.empty(rows, 4096, dtype=torch.bfloat16, device="cuda").normal_()
    out = kernel.rms_norm(x, None)
    for rows_ in (slice(0, 3), slice(rows // 2, rows // 2 + 3), slice(rows - 3, rows)):
        assert_rounded(out[rows_], reference.rms_norm(x[rows_]))
