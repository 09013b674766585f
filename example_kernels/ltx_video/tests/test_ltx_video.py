import importlib

import pytest

torch = pytest.importorskip("torch")

from .checks import DTYPES, assert_rounded, guarded, misaligned, normal  # noqa: E402

HIDDEN = [2, 6, 64, 126, 128, 1000, 2048, 2056, 3072, 4094, 8192, 12290, 16384, 33000]


@pytest.fixture(scope="session")
def reference(kernel):
    return importlib.import_module(kernel.__name__ + ".reference")


def modulations(batch, tokens, hidden, dtype):
    """Per batch entry and per token, as slices of one tensor, the way the model cuts them."""
    for places in (1, tokens):
        yield normal(batch, places, 6, hidden, dtype=dtype, seed=places).unbind(2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 7, 127, 128, 2048, 3072, 4095, 12289])
def test_rms_norm(kernel, reference, dtype, hidden):
    x = normal(3, 5, hidden, dtype=dtype)
    for weight in (None, normal(hidden, dtype=dtype, seed=1), normal(hidden, dtype=torch.float32, seed=1)):
        assert_rounded(kernel.rms_norm(x, weight), reference.rms_norm(x, weight))
        out, intact = guarded(x.shape, dtype)
        kernel.rms_norm(x, weight, out=out)
        assert_rounded(out, reference.rms_norm(x, weight))
        intact()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [7, 128, 2048, 4095])
def test_rms_norm_gradients(kernel, reference, dtype, hidden):
    x = normal(150, hidden, dtype=dtype).requires_grad_()
    weight = normal(hidden, dtype=dtype, seed=1).requires_grad_()
    grad = normal(150, hidden, dtype=dtype, seed=2)
    kernel.rms_norm(x, weight).backward(grad)
    exact_x = x.detach().double().requires_grad_()
    exact_weight = weight.detach().double().requires_grad_()
    reference.rms_norm(exact_x, exact_weight).backward(grad.double())
    bound = 1e-5 if dtype == torch.float32 else 1e-2
    for actual, exact in ((x.grad, exact_x.grad), (weight.grad, exact_weight.grad)):
        assert (actual.double() - exact).norm() / exact.norm() < bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("layer_norm", [False, True])
def test_ada_norm(kernel, reference, dtype, hidden, layer_norm):
    x = normal(2, 5, hidden, dtype=dtype) + 3
    residual = normal(2, 5, hidden, dtype=dtype, seed=1)
    for shift, scale, gate, *_ in modulations(2, 5, hidden, dtype):
        out = kernel.ada_norm(x, scale, shift, layer_norm=layer_norm)
        assert_rounded(out, reference.ada_norm(x, scale, shift, layer_norm=layer_norm), slack=8)
        for g in (gate, None):
            out, summed = kernel.add_ada_norm(x, residual, scale, shift, g, layer_norm=layer_norm)
            exact = residual.double() + x.double() * (1 if g is None else g.double())
            assert_rounded(summed, exact, slack=4)
            assert_rounded(out, reference.ada_norm(summed, scale, shift, layer_norm=layer_norm), slack=8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [256, 1000, 2048, 3072, 4096])
@pytest.mark.parametrize(("batch", "tokens"), [(2, 1024), (2, 1025), (1, 2049), (1, 4096), (3, 700)])
def test_ada_norm_of_many_rows(kernel, reference, dtype, hidden, batch, tokens):
    """Neighbouring rows share a thread where they share the modulation: never across batch entries."""
    x = normal(batch, tokens, hidden, dtype=dtype) + 3
    apart = normal(batch, tokens + 1, hidden, dtype=dtype)[:, 1:]
    for shift, scale, *_ in modulations(batch, tokens, hidden, dtype):
        for rows in (x, apart):
            for layer_norm in (False, True):
                out, intact = guarded(rows.shape, dtype)
                kernel.ada_norm(rows, scale, shift, layer_norm=layer_norm, out=out)
                exact = reference.ada_norm(rows, scale, shift, layer_norm=layer_norm)
                assert_rounded(out, exact, slack=8)
                intact()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_gated_add(kernel, reference, dtype, hidden):
    x = normal(2, 5, hidden, dtype=dtype)
    residual = normal(2, 5, hidden, dtype=dtype, seed=1)
    for gate, *_ in modulations(2, 5, hidden, dtype):
        assert_rounded(kernel.gated_add(x, residual, gate), reference.gated_add(x, residual, gate), slack=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_rope(kernel, reference, dtype, hidden):
    frames, height, width = 3, 2, 5
    x = normal(2, 30, hidden, dtype=dtype)
    table = kernel.rope_3d_table(frames, height, width, hidden, scale=(8 / 25, 32.0, 32.0), device="cuda")
    freqs = reference.rope_3d_freqs(table, frames, height, width, hidden)
    exact = reference.apply_rotary_emb(x, freqs)
    assert_rounded(kernel.apply_rotary_emb(x, freqs), exact, slack=4)
    assert_rounded(kernel.rope_3d(x, table, frames, height, width), exact, slack=4)
    assert_rounded(kernel.apply_rotary_emb(x, tuple(f.expand(2, -1, -1) for f in freqs)), exact, slack=4)
    narrow = tuple(f.to(dtype) for f in freqs)
    assert_rounded(kernel.apply_rotary_emb(x, narrow), reference.apply_rotary_emb(x, narrow), slack=4)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "places", [(1, 1, 1), (1, 1, 7), (5, 1, 3), (2, 7, 1), (1, 64, 65), (3, 33, 31), (127, 3, 2)]
)
def test_rope_over_grids(kernel, reference, batch, places):
    x = normal(batch, places[0] * places[1] * places[2], 136, dtype=torch.bfloat16)
    table = kernel.rope_3d_table(*places, 136, device="cuda")
    exact = reference.apply_rotary_emb(x, reference.rope_3d_freqs(table, *places, 136))
    assert_rounded(kernel.rope_3d(x, table, *places), exact, slack=4)


def test_rope_table_is_the_model_s(kernel, reference):
    """Against diffusers' rotary embedding: same grid, interpolation scale and padding."""
    ltx = pytest.importorskip("diffusers.models.transformers.transformer_ltx")
    frames, height, width, dim = 7, 16, 22, 2048
    scale = (8 / 25, 32, 32)
    embed = ltx.LTXVideoRotaryPosEmbed(dim, base_num_frames=20, base_height=2048, base_width=2048)
    hidden = torch.empty(1, frames * height * width, dim, device="cuda")
    cos, sin = embed(hidden, frames, height, width, rope_interpolation_scale=scale)
    table = kernel.rope_3d_table(frames, height, width, dim, scale=scale, device="cuda")
    ours = reference.rope_3d_freqs(table, frames, height, width, dim)
    # Angles reach 1.6e4, where float32 has three decimals left: how the product is ordered shows.
    torch.testing.assert_close(ours[0], cos, rtol=0, atol=5e-3)
    torch.testing.assert_close(ours[1], sin, rtol=0, atol=5e-3)
    x = normal(1, frames * height * width, dim, dtype=torch.bfloat16)
    torch.testing.assert_close(
        kernel.apply_rotary_emb(x, (cos, sin)), ltx.apply_rotary_emb(x, (cos, sin)), rtol=2**-7, atol=1e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 7, 128, 1000, 4095, 8192, 12289])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_geglu(kernel, reference, dtype, hidden, approximate):
    x = normal(3, 7, 2 * hidden, dtype=dtype, scale=2.0)
    assert_rounded(kernel.geglu(x, approximate), reference.geglu(x, approximate), slack=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_geglu_over_the_whole_range(kernel, reference, dtype):
    gate = torch.linspace(-12, 12, 4096, device="cuda").to(dtype)
    far = torch.tensor([-1e30, -1e4, -100.0, 0.0, 100.0, 1e4, 1e30], device="cuda").to(dtype)
    far = far[far.isfinite()]
    for gates in (gate, far):
        x = torch.cat([torch.ones_like(gates), gates]).unsqueeze(0)
        for approximate in ("none", "tanh"):
            actual, exact = kernel.geglu(x, approximate), reference.geglu(x, approximate)
            assert not torch.isnan(actual).any()
            bound = 4 * torch.finfo(dtype).eps * exact.abs() + 2e-6
            assert ((actual.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 2, 8])
@pytest.mark.parametrize("hidden", [6, 130, 2048])
def test_outputs_misaligned_strided_and_guarded(kernel, reference, dtype, offset, hidden):
    batch, tokens = 2, 6
    packed = normal(batch, tokens, 2, hidden + 2, dtype=dtype)
    sources = [misaligned(normal(batch, tokens, hidden, dtype=dtype), offset), packed[:, :, 1, :hidden]]
    shift, scale, gate, *_ = next(modulations(batch, tokens, hidden, dtype))
    table = kernel.rope_3d_table(1, 2, 3, hidden, device="cuda")
    freqs = reference.rope_3d_freqs(table, 1, 2, 3, hidden)
    for x in sources:
        residual = misaligned(normal(batch, tokens, hidden, dtype=dtype, seed=5), offset)
        turned = reference.apply_rotary_emb(x, freqs)
        cases = [
            (kernel.ada_norm, (x, scale, shift), reference.ada_norm(x, scale, shift)),
            (kernel.gated_add, (x, residual, gate), reference.gated_add(x, residual, gate)),
            (kernel.apply_rotary_emb, (x, freqs), turned),
            (kernel.rope_3d, (x, table, 1, 2, 3), turned),
            (kernel.geglu, (x,), reference.geglu(x)),
        ]
        for function, arguments, exact in cases:
            out, intact = guarded(exact.shape, dtype, offset)
            assert function(*arguments, out=out) is out
            assert_rounded(out, exact, slack=8)
            intact()
        out, out_intact = guarded(x.shape, dtype, offset)
        summed, sum_intact = guarded(x.shape, dtype, offset)
        kernel.add_ada_norm(x, residual, scale, shift, gate, out=(out, summed))
        assert_rounded(summed, reference.gated_add(x, residual, gate), slack=4)
        assert_rounded(out, reference.ada_norm(summed, scale, shift), slack=8)
        out_intact()
        sum_intact()


def test_empty(kernel):
    x = torch.empty(0, 4, 64, device="cuda")
    scale = torch.empty(1, 1, 64, device="cuda")
    assert kernel.ada_norm(x, scale, scale).shape == x.shape
    assert kernel.gated_add(x, x, scale).shape == x.shape
    assert kernel.geglu(x).shape == (0, 4, 32)
    assert kernel.apply_rotary_emb(x, (x, x)).shape == x.shape


def test_compiles_without_breaks_or_storms(kernel):
    def model(x, residual, scale, shift, gate, cos, sin):
        y = kernel.ada_norm(x, scale, shift)
        y = kernel.gated_add(y, residual, gate)
        y, s = kernel.add_ada_norm(y, residual, scale, shift)
        y = kernel.apply_rotary_emb(kernel.rms_norm(y), (cos, sin))
        return kernel.geglu(torch.cat([y, s], dim=-1))

    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    scale, shift, gate = normal(3, 2, 1, 256, dtype=torch.bfloat16).unbind(0)
    for tokens in (4, 9, 16, 100, 333):
        x = normal(2, tokens, 256, dtype=torch.bfloat16, seed=tokens)
        angle = normal(1, tokens, 256, dtype=torch.float32, seed=1)
        inputs = (x, x.flip(0), scale, shift, gate, angle.cos(), angle.sin())
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    assert len(compiles) <= 2, "one static and one dynamic graph serve every number of tokens"
    torch._dynamo.reset()
    torch.testing.assert_close(
        torch.compile(model, fullgraph=True)(*inputs), model(*inputs), rtol=2**-6, atol=1e-2
    )


def test_ops_declare_what_they_do(kernel):
    ops = importlib.import_module(kernel.__name__ + "._ops").ops
    x = normal(2, 6, 64, dtype=torch.float32)
    m = normal(2, 1, 64, dtype=torch.float32, seed=1)
    out, summed = torch.empty_like(x), torch.empty_like(x)
    table = kernel.rope_3d_table(1, 2, 3, 64, device="cuda")
    check = torch.library.opcheck
    check(ops.rms_norm.default, (x.clone().requires_grad_(), None, 1e-6))
    check(ops.rms_norm_out.default, (out, x, None, 1e-6))
    check(ops.rms_norm_backward.default, (x, x, None, 1e-6))
    check(ops.ada_norm.default, (x, m, m, 1e-6, False))
    check(ops.ada_norm_out.default, (out, x, m, m, 1e-6, True))
    check(ops.add_ada_norm.default, (x, x, m, m, m, 1e-6, False))
    check(ops.add_ada_norm_out.default, (out, summed, x, x, None, m, m, 1e-6, False))
    check(ops.gated_add.default, (x, x, m))
    check(ops.gated_add_out.default, (out, x, x, m))
    check(ops.rotary.default, (x, x, x))
    check(ops.rotary_out.default, (out, x, x, x))
    check(ops.rotary_3d.default, (x, table, 1, 2, 3))
    check(ops.rotary_3d_out.default, (out, x, table, 1, 2, 3))
    check(ops.geglu.default, (x, True))
    check(ops.geglu_out.default, (out[..., :32].contiguous(), x, False))


def test_refuses_what_it_cannot_do(kernel):
    x = normal(2, 6, 64, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="scale must broadcast"):
        kernel.ada_norm(x, x[:, :2], x)
    with pytest.raises(RuntimeError, match="gate must have the dtype of x"):
        kernel.gated_add(x, x, x.half())
    with pytest.raises(RuntimeError, match="must have frames"):
        kernel.rope_3d(x, kernel.rope_3d_table(2, 2, 2, 64, device="cuda"), 2, 2, 2)
    with pytest.raises(RuntimeError, match="must be even"):
        kernel.geglu(x[..., :63])
    with pytest.raises(ValueError, match="approximate"):
        kernel.geglu(x, "sigmoid")


def test_block_layer_computes_the_model_s_block(kernel):
    ltx = pytest.importorskip("diffusers.models.transformers.transformer_ltx")
    torch.manual_seed(0)
    block = ltx.LTXVideoTransformerBlock(512, 8, 64, 512).to("cuda", torch.float32).eval()
    x = normal(2, 30, 512, dtype=torch.float32)
    text = normal(2, 11, 512, dtype=torch.float32, seed=1)
    temb = normal(2, 1, 6 * 512, dtype=torch.float32, seed=2)
    angle = normal(1, 30, 512, dtype=torch.float32, seed=3)
    freqs = (angle.cos(), angle.sin())
    with torch.no_grad():
        expected = block(x, text, temb, freqs)
        actual = kernel.layers.LTXVideoTransformerBlock.forward(block, x, text, temb, freqs)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
