"""Layers for `kernels.kernelize`: no constructor, only `forward`."""

import torch
from torch import nn

from .functional import @{function}

__all__ = ["@{layer}"]


class @{layer}(nn.Module):
@% if renamed %@
    """The formula of the template, still to be replaced: that of `torch.nn.SiLU`."""
@% else %@
    """Takes the place of `torch.nn.SiLU`, out of place."""
@% endif %@

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return @{function}(input)
