"""The function and its shape rule for `torch.compile`."""

from typing import Optional

import torch

from ._ops import add_op_namespace_prefix, ops


@torch.library.register_fake(add_op_namespace_prefix("relu_out"))
def _relu_out_fake(out: torch.Tensor, input: torch.Tensor) -> None:
    return None


def relu(input: torch.Tensor, *, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    """`max(input, 0)`, NaN kept, as `torch.relu`.

    input: any shape; float32, float16 or bfloat16 on CUDA, float32 or float64 on the CPU.
    out: a contiguous tensor of the same shape, dtype and device, written and returned; allocated where absent.
    Raises RuntimeError for another dtype or a mismatch of `out`.
    """
    input = input.contiguous()
    if out is None:
        out = torch.empty_like(input)
    ops.relu_out(out, input)
    return out
