"""Layers for kernels.kernelize; they read the attributes of the modules whose forward they replace."""

import torch
import torch.nn as nn

from .functional import rms_norm


class RMSNorm(nn.Module):
    """For transformers' RMSNorm layers (Qwen3RMSNorm and its like)."""

    weight: torch.Tensor
    variance_epsilon: float

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


__all__ = ["RMSNorm"]
