from typing import Optional

import torch

from . import _register  # noqa: F401
from ._ops import ops

# Resolved once: looking up an overload costs as much as the launch.
_rms_norm = ops.rms_norm.default
_rms_norm_forward = ops.rms_norm_forward.default
_rms_norm_out = ops.rms_norm_out.default
_add_rms_norm = ops.add_rms_norm.default
_add_rms_norm_forward = ops.add_rms_norm_forward.default
_add_rms_norm_out = ops.add_rms_norm_out.default


def rms_norm(
    x: torch.Tensor,
    weight: Optional[torch.Tensor] = None,
    eps: float = 1e-6,
    *,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, rounded once.

    x: [..., hidden]; weight: [hidden] or None. `out` is like x, may be x itself, and has no gradient.
    """
    if out is not None:
        _rms_norm_out(out, x, weight, eps)
        return out
    if torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
        return _rms_norm(x, weight, eps)
    return _rms_norm_forward(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: Optional[torch.Tensor] = None,
    eps: float = 1e-6,
    *,
    out: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(s), s) with s = x + residual in the dtype of x; each tensor is moved once.

    x, residual: [..., hidden]; weight: [hidden] or None. `out` is (normalised, sum), both like x, and has no gradient.
    """
    if out is not None:
        _add_rms_norm_out(out[0], out[1], x, residual, weight, eps)
        return out
    if torch.is_grad_enabled() and (
        x.requires_grad or residual.requires_grad or (weight is not None and weight.requires_grad)
    ):
        return _add_rms_norm(x, residual, weight, eps)
    return _add_rms_norm_forward(x, residual, weight, eps)
