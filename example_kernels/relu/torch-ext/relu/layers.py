"""Layers for `kernels.kernelize`: no constructor, only `forward`."""

import torch
from torch import nn

from .functional import relu

__all__ = ["ReLU"]


class ReLU(nn.Module):
    """`torch.nn.ReLU`, out of place."""

    has_backward: bool = False
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return relu(input)
