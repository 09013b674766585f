"""The kernels, and how they are launched."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# A row of up to so many elements lies in registers.
MOST_COLUMNS = 16384
# So many elements at least are a program's work: it takes several short rows.
LEAST_ELEMENTS = 2048
ELEMENTS_PER_WARP = 512
PASS = 8192


# NB: hidden is specialized (divisible by 16 or not): only then do masked accesses move 16 bytes. rows need not be.
@triton.jit(do_not_specialize=["rows"])
def in_registers(out, input, weight, rows, hidden, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """ROWS rows a program, COLUMNS the power of two that holds one: each element is read once."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < hidden)
    offsets = row * hidden + column
    x = tl.load(input + offsets, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / hidden + eps)
    if weight is not None:
        y *= tl.load(weight + column, mask=column < hidden, other=0.0).to(tl.float32)
    tl.store(out + offsets, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def in_passes(out, input, weight, hidden, eps, PASSES: tl.constexpr, PASS: tl.constexpr):
    """A row a program, of any length up to PASSES * PASS, and read twice."""
    row = tl.program_id(0).to(tl.int64)
    input += row * hidden
    out += row * hidden
    squares = tl.zeros((PASS,), tl.float32)
    for i in range(PASSES):
        column = tl.cast(i, tl.int64) * PASS + tl.arange(0, PASS)
        x = tl.load(input + column, mask=column < hidden, other=0.0).to(tl.float32)
        squares += x * x
    factor = tl.rsqrt(tl.sum(squares, axis=0) / hidden + eps)
    for i in range(PASSES):
        column = tl.cast(i, tl.int64) * PASS + tl.arange(0, PASS)
        mask = column < hidden
        y = tl.load(input + column, mask=mask, other=0.0).to(tl.float32) * factor
        if weight is not None:
            y *= tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + column, y.to(out.dtype.element_ty), mask=mask)


def launch(out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    """All contiguous, of one dtype and device."""
    if input.numel() == 0:
        return
    hidden = input.shape[-1]
    rows = input.numel() // hidden
    with torch.cuda.device_of(input):
        if hidden > MOST_COLUMNS:
            passes, warps = triton.cdiv(hidden, PASS), PASS // ELEMENTS_PER_WARP
            in_passes[(rows,)](out, input, weight, hidden, eps, PASSES=passes, PASS=PASS, num_warps=warps)
            return
        columns = triton.next_power_of_2(hidden)
        tile = max(1, LEAST_ELEMENTS // columns)
        warps = min(16, tile * columns // ELEMENTS_PER_WARP)
        in_registers[(triton.cdiv(rows, tile),)](
            out, input, weight, rows, hidden, eps, ROWS=tile, COLUMNS=columns, num_warps=warps
        )
