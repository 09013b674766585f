"""What the tests of a kernel share: inputs, one tolerance table, guarded outputs."""

import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# One rounding to the dtype and the float32 arithmetic before it, relative to the exact result.
RELATIVE = {torch.float32: 4e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
ABSOLUTE = {torch.float32: 1e-6, torch.float16: 1e-6, torch.bfloat16: 1e-6}


def normal(*shape, dtype, seed=0, scale=1.0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device="cuda", dtype=torch.float32) * scale).to(dtype)


def assert_rounded(actual, exact, slack=1.0):
    """`actual` is `exact` (float64) to the rounding of its dtype; `slack` multiplies the tolerance."""
    assert not torch.isnan(actual).any(), "NaN in the result"
    error = (actual.double() - exact.double()).abs()
    bound = slack * (RELATIVE[actual.dtype] * exact.double().abs() + ABSOLUTE[actual.dtype])
    worst = (error - bound).argmax()
    assert (error <= bound).all(), (
        f"{actual.flatten()[worst].item()} for {exact.flatten()[worst].item()} at {worst.item()}, "
        f"{(error > bound).sum().item()} of {error.numel()} are off"
    )


def guarded(shape, dtype, offset=0, margin=64):
    """A tensor of NaN inside a larger buffer of NaN sentinels, `offset` elements off alignment, and a check of them."""
    count = 1
    for size in shape:
        count *= size
    buffer = torch.full((count + 2 * margin + offset,), float("nan"), dtype=dtype, device="cuda")
    view = buffer[margin + offset : margin + offset + count].view(shape)

    def intact():
        assert torch.isnan(buffer[: margin + offset]).all(), "wrote before the output"
        assert torch.isnan(buffer[margin + offset + count :]).all(), "wrote after the output"

    return view, intact


def misaligned(tensor, offset=1):
    """The same values, contiguous, `offset` elements off alignment."""
    buffer = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)
    view = buffer[offset:].view(tensor.shape)
    return view.copy_(tensor)
