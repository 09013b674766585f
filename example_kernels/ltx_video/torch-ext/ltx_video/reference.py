"""What the kernels compute, in float64 and in the plain PyTorch of the model: for tests and benchmarks."""

from typing import Optional

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: Optional[torch.Tensor] = None, eps: float = 1e-6) -> torch.Tensor:
    """In float64, unrounded; so are all that follow, down to the eager ones."""
    x = x.double()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.double()


def ada_norm(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float = 1e-6, layer_norm: bool = False
) -> torch.Tensor:
    y = F.layer_norm(x.double(), x.shape[-1:], eps=eps) if layer_norm else rms_norm(x, None, eps)
    return y * (1 + scale.double()) + shift.double()


def add_ada_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    gate: Optional[torch.Tensor] = None,
    eps: float = 1e-6,
    layer_norm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum is rounded to the dtype of x before it is normalised, as in the model."""
    gated = x.double() if gate is None else x.double() * gate.double()
    summed = (residual.double() + gated).to(x.dtype)
    return ada_norm(summed, scale, shift, eps, layer_norm), summed


def gated_add(x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return residual.double() + x.double() * gate.double()


def apply_rotary_emb(x: torch.Tensor, freqs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = (f.double() for f in freqs)
    a, b = x.double().unflatten(-1, (-1, 2)).unbind(-1)
    return x.double() * cos + torch.stack([-b, a], dim=-1).flatten(-2) * sin


def rope_3d_freqs(
    table: torch.Tensor, frames: int, height: int, width: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The (cos, sin) of apply_rotary_emb, [1, tokens, dim], that a table of rope_3d stands for."""
    axes = table.split([frames, height, width])
    shape = (frames, height, width)
    n = table.shape[1]
    parts = []
    for axis, rows in enumerate(axes):
        view = [1, 1, 1, n, 2]
        view[axis] = shape[axis]
        parts.append(rows.view(view).expand(*shape, n, 2))
    full = (
        torch.stack(parts, dim=-2).reshape(1, frames * height * width, 3 * n, 2).repeat_interleave(2, dim=-2)
    )
    cos, sin = full.unbind(-1)
    return F.pad(cos, (dim % 6, 0), value=1.0), F.pad(sin, (dim % 6, 0))


def geglu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    value, gate = x.double().chunk(2, dim=-1)
    return value * F.gelu(gate, approximate=approximate)


def eager_rms_norm(x: torch.Tensor, weight: Optional[torch.Tensor] = None, eps: float = 1e-6) -> torch.Tensor:
    """The formula as diffusers' RMSNorm has it."""
    y = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return y.to(x.dtype) if weight is None else y.to(weight.dtype) * weight


def eager_ada_norm(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    return eager_rms_norm(x, None, eps) * (1 + scale) + shift


def eager_add_ada_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    gate: Optional[torch.Tensor] = None,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    summed = residual + (x if gate is None else x * gate)
    return eager_ada_norm(summed, scale, shift, eps), summed


def eager_apply_rotary_emb(x: torch.Tensor, freqs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The formula as diffusers' transformer_ltx has it."""
    cos, sin = freqs
    a, b = x.unflatten(2, (-1, 2)).unbind(-1)
    turned = torch.stack([-b, a], dim=-1).flatten(2)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


def eager_geglu(x: torch.Tensor) -> torch.Tensor:
    value, gate = x.chunk(2, dim=-1)
    return value * F.gelu(gate)
