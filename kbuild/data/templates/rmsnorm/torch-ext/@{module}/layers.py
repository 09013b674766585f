"""Layers for `kernels.kernelize`: no constructor, only `forward`; they read the attributes of the layer they replace."""

import torch
from torch import nn

from .functional import rms_norm

__all__ = ["RMSNorm"]


class RMSNorm(nn.Module):
    """Takes the place of the RMSNorm layers of transformers (`LlamaRMSNorm`, `Qwen3RMSNorm` and their like)."""

    weight: torch.Tensor
    variance_epsilon: float

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)
