"""What the build has no binding for: the operations, defined and implemented in Python."""

from __future__ import annotations

@% if cpu %@
import os

@% endif %@
import torch

from ._ops import add_op_namespace_prefix

@% if cpu %@
# TRITON_INTERPRET=1 makes Triton run the kernel itself on the CPU, slowly.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
@% endif %@
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _expect(condition, message, *found):
    if not condition:
        raise RuntimeError("@{function}: " + message.format(*found))


def _@{function}_out(out, input):
    _expect(input.dtype in DTYPES, "input must be float32, float16 or bfloat16, not {}", input.dtype)
    _expect(input.is_contiguous() and out.is_contiguous(), "input and out must be contiguous")
    _expect(out.shape == input.shape, "out must have the shape of input, {}, not {}", input.shape, out.shape)
    _expect(out.dtype == input.dtype, "out must have the dtype of input, {}, not {}", input.dtype, out.dtype)
    _expect(out.device == input.device, "out must be on {}, not {}", input.device, out.device)
@% if cpu %@
    if input.is_cpu and not INTERPRETED:
        with torch.no_grad():
            x = input.float()
            out.copy_(x / (1 + torch.exp(-x)))
        return
@% endif %@
    from . import triton_kernel  # only here: a PyTorch for the CPU comes without Triton

    triton_kernel.launch(out, input)


def _@{function}(input):
    out = torch.empty_like(input)
    _@{function}_out(out, input)
    return out


for name, arguments, implementation in (
    ("@{function}", "(Tensor input) -> Tensor", _@{function}),
    ("@{function}_out", "(Tensor(a!) out, Tensor input) -> ()", _@{function}_out),
):
    torch.library.define(add_op_namespace_prefix(name), arguments)
    torch.library.impl(add_op_namespace_prefix(name), [@{backends}], implementation)
