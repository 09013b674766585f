"""What the kernel computes, in float64: for tests and benchmarks."""

import torch


def @{function}(input: torch.Tensor) -> torch.Tensor:
    """In float64, unrounded."""
    input = input.double()
    return input / (1 + torch.exp(-input))
