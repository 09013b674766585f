"""RMSNorm at the sizes of Qwen3-8B and LTX-Video; with the residual add at those of Qwen3-8B."""

import torch
import torch.nn.functional as F

from kbuild.harness import Operation, nbytes, normal

QWEN = [
    (1, 128, 4096),
    (1, 512, 4096),
    (1, 1024, 4096),
    (1, 2048, 4096),
    (1, 4096, 4096),
    (4, 512, 4096),
    (8, 256, 4096),
    (1, 8192, 4096),
]
LTX = [
    (1, 1024, 2048),
    (2, 1024, 2048),
    (4, 1024, 2048),
    (1, 4096, 2048),
    (2, 4096, 3072),
    (1, 8192, 2048),
    (4, 4096, 3072),
]
EPS = 1e-6


def bf16_rms_norm(x, weight):
    """The short formula, whose mean of squares is rounded as it goes."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def liger_rms_norm():
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)


def liger_add_rms_norm():
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return lambda x, residual, weight: LigerFusedAddRMSNormFunction.apply(
        x, residual, weight, EPS, 0.0, "llama", False
    )


def operations(kernel, reference):
    yield Operation(
        name="RMSNorm",
        shapes=[*QWEN, (1, 65536, 4096), *LTX],
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
        name="RMSNorm of heads",
        shapes=[(1, 128, 32, 128), (1, 2048, 32, 128), (1, 8192, 32, 128)],
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
        name="add + RMSNorm",
        shapes=QWEN,
        inputs=lambda shape, dtype: (
            normal(*shape, dtype=dtype),
            normal(*shape, dtype=dtype),
            normal(shape[-1], dtype=dtype, scale=0.1, shift=1.0),
        ),
        moved=lambda x, residual, weight: nbytes(x, residual, x, x, weight),
        exact=reference.add_rms_norm,
        ours=kernel.add_rms_norm,
        eager=reference.eager_add_rms_norm,
        best=lambda x, residual, weight: torch_add_rms_norm(x + residual, weight),
        peers={"Liger": liger_add_rms_norm},
    )


def torch_add_rms_norm(summed, weight):
    return F.rms_norm(summed, weight.shape, weight, EPS), summed
