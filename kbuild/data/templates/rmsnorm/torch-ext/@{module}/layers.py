"""Layers for `kernels.kernelize`: no constructor, only `forward`; they read the attributes of the layer they replace."""

from __future__ import annotations

import torch
from torch import nn

from .functional import @{function}

__all__ = ["@{layer}"]


class @{layer}(nn.Module):
@% if renamed %@
    """The formula of the template, still to be replaced: that of transformers' RMSNorm layers."""
@% else %@
    """Takes the place of the RMSNorm layers of transformers (`LlamaRMSNorm`, `Qwen3RMSNorm` and their like)."""
@% endif %@

    weight: torch.Tensor | None
    variance_epsilon: float

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = getattr(self, "weight", None)
        if weight is None or weight.dtype == hidden_states.dtype:
            return @{function}(hidden_states, weight, self.variance_epsilon)
        # A weight of another dtype, as under mixed precision: multiplied, and promoted, as transformers does.
        return weight * @{function}(hidden_states, None, self.variance_epsilon)
