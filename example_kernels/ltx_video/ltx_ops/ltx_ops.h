// The ops of the LTX-Video transformer that are not plain RMSNorm, without torch: what the binding calls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../rms_norm/rms_norm.h"

namespace [[gnu::visibility("hidden")]] ltx_ops {

using row_ops::RowsOf;
using row_ops::Scalar;

// out = normalise(s) * (1 + scale) + shift, with s = x, or sum = residual + x * gate where there is a residual.
// Rows come in groups of `inner_rows` (the tokens of a batch entry); an operand that is the same for all tokens has
// inner 0.
struct AdaNorm {
  Scalar type;
  bool centre = false;  // LayerNorm instead of RMSNorm
  int64_t rows = 0;
  int64_t inner_rows = 0;
  int hidden = 0;
  float eps = 0.0f;
  RowsOf x, scale, shift, out;
  RowsOf residual, sum;  // both or none
  RowsOf gate;           // optional, with a residual
};
cudaError_t ada_norm(const AdaNorm& op, cudaStream_t stream);

// out = residual + x * gate
struct GatedAdd {
  Scalar type;
  int64_t rows = 0;
  int64_t inner_rows = 0;
  int hidden = 0;
  RowsOf x, residual, gate, out;
};
cudaError_t gated_add(const GatedAdd& op, cudaStream_t stream);

// Neighbouring channels (a, b) turn by an angle: (a cos - b sin, b cos + a sin). cos and sin hold each angle's value
// twice, for a and for b.
struct Rotary {
  Scalar type;
  Scalar angle_type;  // `type` or kFloat
  int64_t rows = 0;
  int64_t inner_rows = 0;
  int hidden = 0;  // even
  RowsOf x, cos, sin, out;
};
cudaError_t rotary(const Rotary& op, cudaStream_t stream);

// As Rotary, the angles looked up by a token's place in the grid: token = (frame * height + row) * width + column.
// After (hidden % 6) channels that stay as they are, pair q turns by entry q / 3 of the frame's, row's or column's angles
// for q % 3 = 0, 1, 2. `table` is float (cos, sin), [frames + height + width, hidden / 6, 2], contiguous.
struct Rotary3d {
  Scalar type;
  int64_t rows = 0;
  int64_t inner_rows = 0;  // frames * height * width, fewer than 2^31
  int hidden = 0;  // even
  int frames = 0, height = 0, width = 0;
  const float* table = nullptr;
  RowsOf x, out;
};
cudaError_t rotary_3d(const Rotary3d& op, cudaStream_t stream);

// out = value * gelu(gate), value the first half of x and gate the second.
struct Geglu {
  Scalar type;
  bool tanh = false;  // the tanh approximation instead of the exact erf form
  int64_t rows = 0;
  int64_t inner_rows = 0;
  int hidden = 0;  // of out; x has twice as many
  RowsOf x, out;
};
cudaError_t geglu(const Geglu& op, cudaStream_t stream);

}  // namespace ltx_ops
