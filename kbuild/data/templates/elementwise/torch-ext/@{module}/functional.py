"""The function, and what PyTorch has to know of the operation behind it."""

from __future__ import annotations

import torch

@% if noarch %@
from . import operation  # noqa: F401  (defines the operations)
@% endif %@
from ._ops import add_op_namespace_prefix, ops


@torch.library.register_fake(add_op_namespace_prefix("@{function}"))
def _@{function}_fake(input):
    return torch.empty_like(input)


@torch.library.register_fake(add_op_namespace_prefix("@{function}_out"))
def _@{function}_out_fake(out, input):
    return None


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    # In PyTorch's own operations; worth a kernel of its own where training time matters.
    (x,) = ctx.saved_tensors
    gate = torch.sigmoid(x.float())
    return (grad.float() * gate * (1 + x.float() * (1 - gate))).to(x.dtype)


torch.library.register_autograd(add_op_namespace_prefix("@{function}"), _backward, setup_context=_save)


def @{function}(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`input / (1 + exp(-input))`, computed in float32 and rounded once.

    input: any shape; float32, float16 or bfloat16. out: a contiguous tensor like `input`, written and returned, without
    a gradient. Raises RuntimeError for another dtype or a mismatch of `out`.
    """
    input = input.contiguous()
    if out is None:
        return ops.@{function}(input)
    ops.@{function}_out(out, input)
    return out
