"""The function, and what PyTorch has to know of the operation behind it."""

from __future__ import annotations

import torch

@% if noarch %@
from . import operation  # noqa: F401  (defines the operations)
@% endif %@
from ._ops import add_op_namespace_prefix, ops


@torch.library.register_fake(add_op_namespace_prefix("@{function}"))
def _@{function}_fake(input, weight, eps):
    return torch.empty_like(input)


@torch.library.register_fake(add_op_namespace_prefix("@{function}_out"))
def _@{function}_out_fake(out, input, weight, eps):
    return None


def _save(ctx, inputs, output):
    input, weight, ctx.eps = inputs
    ctx.save_for_backward(input, weight)


def _backward(ctx, grad):
    # In PyTorch's own operations; worth a kernel of its own where training time matters.
    input, weight = ctx.saved_tensors
    x = input.float()
    grad = grad.float()
    factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + ctx.eps)
    normed = x * factor
    scaled = grad if weight is None else grad * weight.float()
    grad_input = factor * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    if weight is None:
        return grad_input.to(input.dtype), None, None
    grad_weight = (grad * normed).reshape(-1, weight.numel()).sum(0)
    return grad_input.to(input.dtype), grad_weight.to(weight.dtype), None


torch.library.register_autograd(add_op_namespace_prefix("@{function}"), _backward, setup_context=_save)


def @{function}(
    input: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`input / sqrt(mean(input**2) + eps) * weight` over the last dimension, computed in float32 and rounded once.

    input: [..., hidden]; float32, float16 or bfloat16. weight: [hidden] of the same dtype, or None. out: a contiguous
    tensor like `input`, which may be `input` itself, written and returned, without a gradient. Raises RuntimeError for
    another dtype or a mismatch.
    """
    input = input.contiguous()
    weight = None if weight is None else weight.contiguous()
    if out is None:
        return ops.@{function}(input, weight, eps)
    ops.@{function}_out(out, input, weight, eps)
    return out
