"""Tells PyTorch what the ops return without running them, and how to differentiate RMSNorm."""

import torch

from ._ops import add_op_namespace_prefix, ops


def _contiguous_like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _fake(name):
    return torch.library.register_fake(add_op_namespace_prefix(name))


@_fake("rms_norm")
def _(x, weight, eps):
    return _contiguous_like(x)


@_fake("rms_norm_forward")
def _(x, weight, eps):
    return _contiguous_like(x)


@_fake("rms_norm_out")
def _(out, x, weight, eps):
    return None


@_fake("rms_norm_backward")
def _(grad, x, weight, eps):
    grad_weight = (
        torch.empty((0,), dtype=x.dtype, device=x.device) if weight is None else _contiguous_like(weight)
    )
    return _contiguous_like(x), grad_weight


@_fake("ada_norm")
def _(x, scale, shift, eps, centre):
    return _contiguous_like(x)


@_fake("ada_norm_out")
def _(out, x, scale, shift, eps, centre):
    return None


@_fake("add_ada_norm")
def _(x, residual, gate, scale, shift, eps, centre):
    return _contiguous_like(x), _contiguous_like(x)


@_fake("add_ada_norm_out")
def _(out, residual_out, x, residual, gate, scale, shift, eps, centre):
    return None


@_fake("gated_add")
def _(x, residual, gate):
    return _contiguous_like(x)


@_fake("gated_add_out")
def _(out, x, residual, gate):
    return None


@_fake("rotary")
def _(x, cos, sin):
    return _contiguous_like(x)


@_fake("rotary_out")
def _(out, x, cos, sin):
    return None


@_fake("rotary_3d")
def _(x, table, frames, height, width):
    return _contiguous_like(x)


@_fake("rotary_3d_out")
def _(out, x, table, frames, height, width):
    return None


@_fake("geglu")
def _(x, tanh):
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)


@_fake("geglu_out")
def _(out, x, tanh):
    return None


def _save_input(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):
    x, weight = ctx.saved_tensors
    grad_x, grad_weight = ops.rms_norm_backward(grad, x, weight, ctx.eps)
    return grad_x, None if weight is None else grad_weight, None


torch.library.register_autograd(add_op_namespace_prefix("rms_norm"), _backward, setup_context=_save_input)
