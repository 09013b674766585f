@% if cuda %@
"""@{layer} beside a copy of the same bytes, PyTorch and torch.compile: `kbuild bench`."""

import torch
import torch.nn.functional as F
from kbuild.harness import Operation, nbytes, normal

# A token at a time, a prompt, long ones.
SHAPES = [(1, 1, 12288), (1, 128, 4096), (1, 2048, 4096), (1, 8192, 4096), (1, 8192, 12288)]


def operations(kernel, reference):
    yield Operation(
        name="@{layer}",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (normal(*shape, dtype=dtype),),
        moved=lambda x: nbytes(x, x),  # read once, written once
        exact=reference.@{function},
        ours=kernel.@{function},
        eager=lambda x: x * torch.sigmoid(x),
        best=F.silu,
    )
@% endif %@
