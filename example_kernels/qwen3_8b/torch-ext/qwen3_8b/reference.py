"""What the kernels compute, in float64 and in the plain PyTorch of the model: for tests and benchmarks."""

from typing import Optional

import torch


def rms_norm(x: torch.Tensor, weight: Optional[torch.Tensor] = None, eps: float = 1e-6) -> torch.Tensor:
    """In float64, unrounded."""
    x = x.double()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.double()


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: Optional[torch.Tensor] = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64; the sum is rounded to the dtype of x before it is normalised, as in the model."""
    summed = (x.double() + residual.double()).to(x.dtype)
    return rms_norm(summed, weight, eps), summed


def eager_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The formula as transformers' Qwen3RMSNorm has it."""
    dtype = x.dtype
    x = x.to(torch.float32)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return weight * x.to(dtype)


def eager_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    summed = x + residual
    return eager_rms_norm(summed, weight, eps), summed
