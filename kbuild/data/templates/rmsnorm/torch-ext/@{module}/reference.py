"""What the kernel computes, in float64: for tests and benchmarks."""

from __future__ import annotations

import torch


def @{function}(input: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """In float64, unrounded."""
    input = input.double()
    output = input * torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps)
    return output if weight is None else output * weight.double()
