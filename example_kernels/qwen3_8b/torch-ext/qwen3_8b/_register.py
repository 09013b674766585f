"""Tells PyTorch what the ops return without running them, and how to differentiate them."""

import torch

from ._ops import add_op_namespace_prefix, ops


def _contiguous_like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm"))
def _(x, weight, eps):
    return _contiguous_like(x)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_forward"))
def _(x, weight, eps):
    return _contiguous_like(x)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_out"))
def _(out, x, weight, eps):
    return None


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_backward"))
def _(grad, x, weight, eps):
    grad_weight = (
        torch.empty((0,), dtype=x.dtype, device=x.device) if weight is None else _contiguous_like(weight)
    )
    return _contiguous_like(x), grad_weight


@torch.library.register_fake(add_op_namespace_prefix("add_rms_norm"))
def _(x, residual, weight, eps):
    return _contiguous_like(x), _contiguous_like(x)


@torch.library.register_fake(add_op_namespace_prefix("add_rms_norm_forward"))
def _(x, residual, weight, eps):
    return _contiguous_like(x), _contiguous_like(x)


@torch.library.register_fake(add_op_namespace_prefix("add_rms_norm_out"))
def _(out, residual_out, x, residual, weight, eps):
    return None


def _save_input(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):
    x, weight = ctx.saved_tensors
    grad_x, grad_weight = ops.rms_norm_backward(grad, x, weight, ctx.eps)
    return grad_x, None if weight is None else grad_weight, None


def _save_sum(ctx, inputs, output):
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)


def _add_backward(ctx, grad, grad_sum):
    summed, weight = ctx.saved_tensors
    grad_x, grad_weight = ops.rms_norm_backward(grad, summed, weight, ctx.eps)
    grad_x = grad_x + grad_sum
    return grad_x, grad_x, None if weight is None else grad_weight, None


torch.library.register_autograd(add_op_namespace_prefix("rms_norm"), _backward, setup_context=_save_input)
torch.library.register_autograd(
    add_op_namespace_prefix("add_rms_norm"), _add_backward, setup_context=_save_sum
)
