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


def _@{function}_out(out, input, weight, eps):
    _expect(input.dim() >= 1, "input must have at least one dimension")
    _expect(input.dtype in DTYPES, "input must be float32, float16 or bfloat16, not {}", input.dtype)
    _expect(input.is_contiguous() and out.is_contiguous(), "input and out must be contiguous")
    _expect(out.shape == input.shape, "out must have the shape of input, {}, not {}", input.shape, out.shape)
    _expect(out.dtype == input.dtype, "out must have the dtype of input, {}, not {}", input.dtype, out.dtype)
    _expect(out.device == input.device, "out must be on {}, not {}", input.device, out.device)
    if weight is not None:
        hidden = input.shape[-1:]
        _expect(weight.shape == hidden, "weight must have shape {}, not {}", hidden, weight.shape)
        _expect(weight.is_contiguous(), "weight must be contiguous")
        _expect(weight.dtype == input.dtype, "weight must have the dtype of input, not {}", weight.dtype)
        _expect(weight.device == input.device, "weight must be on {}, not {}", input.device, weight.device)
@% if cpu %@
    if input.is_cpu and not INTERPRETED:
        with torch.no_grad():
            x = input.float()
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
            out.copy_(y if weight is None else y * weight.float())
        return
@% endif %@
    from . import triton_kernel  # only here: a PyTorch for the CPU comes without Triton

    triton_kernel.launch(out, input, weight, eps)


def _@{function}(input, weight, eps):
    out = torch.empty_like(input)
    _@{function}_out(out, input, weight, eps)
    return out


for name, arguments, implementation in (
    ("@{function}", "(Tensor input, Tensor? weight, float eps) -> Tensor", _@{function}),
    ("@{function}_out", "(Tensor(a!) out, Tensor input, Tensor? weight, float eps) -> ()", _@{function}_out),
):
    torch.library.define(add_op_namespace_prefix(name), arguments)
    torch.library.impl(add_op_namespace_prefix(name), [@{backends}], implementation)
