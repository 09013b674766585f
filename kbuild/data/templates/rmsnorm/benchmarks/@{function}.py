@% if cuda %@
"""@{layer} beside a copy of the same bytes, PyTorch and torch.compile: `kbuild bench`."""

import torch
import torch.nn.functional as F
from kbuild.harness import Operation, nbytes, normal

# Qwen3-8B: a token at a time, a prompt, long ones; then the heads of query and key, whose rows are short.
SHAPES = [
    (1, 1, 4096),
    (1, 128, 4096),
    (1, 2048, 4096),
    (1, 8192, 4096),
    (1, 1, 32, 128),
    (1, 2048, 32, 128),
    (1, 2048, 8, 128),
]
EPS = 1e-6


def eager(x, weight):
    """The formula as the models of transformers have it."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * y.to(x.dtype)


def operations(kernel, reference):
    yield Operation(
        name="@{layer}",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (
            normal(*shape, dtype=dtype),
            normal(shape[-1], dtype=dtype, scale=0.1, shift=1.0),
        ),
        moved=lambda x, weight: nbytes(x, x, weight),  # read once, written once
        exact=lambda x, weight: reference.@{function}(x, weight, EPS),
        ours=lambda x, weight: kernel.@{function}(x, weight, EPS),
        eager=eager,
        best=lambda x, weight: F.rms_norm(x, weight.shape, weight, EPS),
    )
@% endif %@
