import math
from typing import Optional

import torch

from . import _register  # noqa: F401
from ._ops import ops

# Resolved once: looking up an overload costs as much as the launch.
_rms_norm = ops.rms_norm.default
_rms_norm_forward = ops.rms_norm_forward.default
_rms_norm_out = ops.rms_norm_out.default
_ada_norm = ops.ada_norm.default
_ada_norm_out = ops.ada_norm_out.default
_add_ada_norm = ops.add_ada_norm.default
_add_ada_norm_out = ops.add_ada_norm_out.default
_gated_add = ops.gated_add.default
_gated_add_out = ops.gated_add_out.default
_rotary = ops.rotary.default
_rotary_out = ops.rotary_out.default
_rotary_3d = ops.rotary_3d.default
_rotary_3d_out = ops.rotary_3d_out.default
_geglu = ops.geglu.default
_geglu_out = ops.geglu_out.default


def rms_norm(
    x: torch.Tensor,
    weight: Optional[torch.Tensor] = None,
    eps: float = 1e-6,
    *,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, rounded once.

    x: [..., hidden]; weight: [hidden], float32 or of the dtype of x, or None. `out` is like x, may be x itself, and has
    no gradient.
    """
    if out is not None:
        _rms_norm_out(out, x, weight, eps)
        return out
    if torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
        return _rms_norm(x, weight, eps)
    return _rms_norm_forward(x, weight, eps)


def ada_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float = 1e-6,
    *,
    layer_norm: bool = False,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """norm(x) * (1 + scale) + shift, norm being RMSNorm or, with `layer_norm`, LayerNorm; neither has a weight.

    x: [batch, tokens, hidden]; scale, shift: [batch or 1, tokens or 1, hidden], of the dtype of x.
    """
    if out is not None:
        _ada_norm_out(out, x, scale, shift, eps, layer_norm)
        return out
    return _ada_norm(x, scale, shift, eps, layer_norm)


def add_ada_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    gate: Optional[torch.Tensor] = None,
    eps: float = 1e-6,
    *,
    layer_norm: bool = False,
    out: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ada_norm(s, scale, shift), s) with s = residual + x * gate in the dtype of x; without a gate, residual + x.

    x, residual: [batch, tokens, hidden]; scale, shift, gate as in ada_norm. `out` is (normalised, sum).
    """
    if out is not None:
        _add_ada_norm_out(out[0], out[1], x, residual, gate, scale, shift, eps, layer_norm)
        return out
    return _add_ada_norm(x, residual, gate, scale, shift, eps, layer_norm)


def gated_add(
    x: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor, *, out: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """residual + x * gate; gate: [batch or 1, tokens or 1, hidden]."""
    if out is not None:
        _gated_add_out(out, x, residual, gate)
        return out
    return _gated_add(x, residual, gate)


def apply_rotary_emb(
    x: torch.Tensor, freqs: tuple[torch.Tensor, torch.Tensor], *, out: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """Turns neighbouring channels (a, b) by an angle: (a cos - b sin, b cos + a sin).

    x: [batch, tokens, hidden]; freqs: (cos, sin), each [batch or 1, tokens, hidden] with every angle twice, float32 or
    of the dtype of x, as the model's rotary embedding returns them.
    """
    cos, sin = freqs
    if out is not None:
        _rotary_out(out, x, cos, sin)
        return out
    return _rotary(x, cos, sin)


def rope_3d(
    x: torch.Tensor,
    table: torch.Tensor,
    frames: int,
    height: int,
    width: int,
    *,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """As apply_rotary_emb for a grid of tokens, with the angles looked up in a small table instead of read per channel.

    x: [batch, frames * height * width, hidden]; table: from rope_3d_table. Moves a third of the bytes.
    """
    if out is not None:
        _rotary_3d_out(out, x, table, frames, height, width)
        return out
    return _rotary_3d(x, table, frames, height, width)


def rope_3d_table(
    frames: int,
    height: int,
    width: int,
    dim: int,
    *,
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0),
    base: tuple[float, float, float] = (20.0, 2048.0, 2048.0),
    theta: float = 10000.0,
    device: Optional[torch.device] = None,
) -> torch.Tensor:
    """The (cos, sin) of every frame, row and column: float32 [frames + height + width, dim // 6, 2].

    Position p of an axis stands at c = p * scale / base of it and turns by theta^(i / (n - 1)) * pi / 2 * (2 c - 1),
    i = 0 … n - 1, n = dim // 6. `scale` is the model's rope_interpolation_scale times its patch sizes.
    """
    n = dim // 6
    exponents = torch.linspace(0.0, 1.0, n, device=device, dtype=torch.float32)
    frequencies = theta**exponents * math.pi / 2.0
    places = torch.cat(
        [
            torch.arange(count, device=device, dtype=torch.float32) * s / b
            for count, s, b in zip((frames, height, width), scale, base)
        ]
    )
    angles = frequencies * (places.unsqueeze(-1) * 2 - 1)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def geglu(x: torch.Tensor, approximate: str = "none", *, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    """value * gelu(gate), value the first half of the last dimension and gate the second.

    approximate: "none" for the exact erf form, "tanh" for the approximation, as in torch.nn.functional.gelu.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    tanh = approximate == "tanh"
    if out is not None:
        _geglu_out(out, x, tanh)
        return out
    return _geglu(x, tanh)
