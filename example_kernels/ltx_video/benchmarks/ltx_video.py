"""The ops of the LTX-Video transformer at its sizes."""

import torch
import torch.nn.functional as F

from kbuild.harness import Operation, nbytes, normal

SHAPES = [
    (1, 1024, 2048),
    (2, 1024, 2048),
    (4, 1024, 2048),
    (1, 4096, 2048),
    (2, 4096, 3072),
    (1, 8192, 2048),
    (4, 4096, 3072),
]
EPS = 1e-6


def modulation(batch, hidden, dtype, count):
    """Per batch entry, cut from one tensor as the model does."""
    return normal(batch, 1, 6, hidden, dtype=dtype, scale=0.1).unbind(2)[:count]


def angles(tokens, hidden):
    angle = normal(1, tokens, hidden // 2, dtype=torch.float32, scale=100.0).repeat_interleave(2, dim=-1)
    return angle.cos(), angle.sin()


def liger_geglu():
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    # Liger computes the tanh form of two tensors; it reads and writes the same bytes.
    return lambda x: LigerGELUMulFunction.apply(*x.chunk(2, dim=-1)[::-1])


def bf16_rms_norm(x, weight):
    """The short formula, whose mean of squares is rounded as it goes."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def liger_rms_norm():
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)


def operations(kernel, reference):
    yield Operation(
        name="RMSNorm",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (
            normal(*shape, dtype=dtype),
            normal(shape[-1], dtype=dtype, scale=0.1, shift=1.0),
        ),
        moved=lambda x, weight: nbytes(x, x, weight),
        exact=reference.rms_norm,
        ours=kernel.rms_norm,
        eager=reference.eager_rms_norm,
        best=lambda x, weight: F.rms_norm(x, weight.shape, weight, EPS),
        peers={"eager, all bf16": lambda: bf16_rms_norm, "Liger": liger_rms_norm},
    )
    yield Operation(
        name="AdaLN",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (normal(*shape, dtype=dtype), *modulation(shape[0], shape[-1], dtype, 2)),
        moved=lambda x, scale, shift: nbytes(x, x, scale, shift),
        exact=reference.ada_norm,
        ours=kernel.ada_norm,
        eager=reference.eager_ada_norm,
    )
    yield Operation(
        name="gate + AdaLN",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (
            normal(*shape, dtype=dtype),
            normal(*shape, dtype=dtype),
            *modulation(shape[0], shape[-1], dtype, 3),
        ),
        moved=lambda x, residual, scale, shift, gate: nbytes(x, residual, x, x, scale, shift, gate),
        exact=reference.add_ada_norm,
        ours=kernel.add_ada_norm,
        eager=reference.eager_add_ada_norm,
    )
    yield Operation(
        name="gate",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (
            normal(*shape, dtype=dtype),
            normal(*shape, dtype=dtype),
            *modulation(shape[0], shape[-1], dtype, 1),
        ),
        moved=lambda x, residual, gate: nbytes(x, residual, x, gate),
        exact=reference.gated_add,
        ours=kernel.gated_add,
        eager=lambda x, residual, gate: residual + x * gate,
        best=lambda x, residual, gate: torch.addcmul(residual, x, gate),
    )
    yield Operation(
        name="RoPE 3D",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (normal(*shape, dtype=dtype), *angles(shape[1], shape[2])),
        moved=lambda x, cos, sin: nbytes(x, x, cos, sin),
        exact=lambda x, cos, sin: reference.apply_rotary_emb(x, (cos, sin)),
        ours=lambda x, cos, sin: kernel.apply_rotary_emb(x, (cos, sin)),
        eager=lambda x, cos, sin: reference.eager_apply_rotary_emb(x, (cos, sin)),
    )
    yield Operation(
        name="RoPE 3D from a table",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (normal(*shape, dtype=dtype), *grid(kernel, shape)),
        moved=lambda x, table, *_: nbytes(x, x, table),
        exact=lambda x, table, *places: exact_rope_3d(reference, x, table, places),
        ours=kernel.rope_3d,
        eager=lambda x, table, *places: reference.eager_apply_rotary_emb(
            x, reference.rope_3d_freqs(table, *places, x.shape[-1])
        ),
    )
    yield Operation(
        name="GEGLU",
        shapes=[(*shape[:-1], 2 * shape[-1]) for shape in SHAPES],
        inputs=lambda shape, dtype: (normal(*shape, dtype=dtype),),
        moved=lambda x: nbytes(x) * 3 // 2,
        exact=reference.geglu,
        ours=kernel.geglu,
        eager=reference.eager_geglu,
        peers={"Liger (tanh)": liger_geglu},
    )


def grid(kernel, shape):
    frames, height, width = 4, 16, shape[1] // 64
    return kernel.rope_3d_table(frames, height, width, shape[2], device="cuda"), frames, height, width


def exact_rope_3d(reference, x, table, places):
    return reference.apply_rotary_emb(x, reference.rope_3d_freqs(table, *places, x.shape[-1]))
