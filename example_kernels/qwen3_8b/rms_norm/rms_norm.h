// RMSNorm over the last dimension, without torch: what a binding calls. The directory is the same in every example
// project that normalises; a test compares them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace [[gnu::visibility("hidden")]] row_ops {

enum class Scalar { kFloat, kHalf, kBFloat16 };

// Rows in groups of `inner_rows`; strides count elements; `data` null: absent.
struct RowsOf {
  void* data = nullptr;
  int64_t outer = 0;
  int64_t inner = 0;
};

struct RmsNorm {
  Scalar type;
  Scalar weight_type;           // `type` or kFloat
  const void* weight = nullptr;  // [hidden], contiguous, or null
  int64_t rows = 0;
  int64_t inner_rows = 0;
  int hidden = 0;
  float eps = 0.0f;
  RowsOf x, out;
  RowsOf residual, sum;  // both present or both absent; sum = x + residual, and out normalises sum
};

cudaError_t rms_norm(const RmsNorm& op, cudaStream_t stream);

struct RmsNormBackward {
  Scalar type;
  Scalar weight_type;
  const void* weight = nullptr;
  int64_t rows = 0;
  int64_t inner_rows = 0;
  int hidden = 0;
  float eps = 0.0f;
  RowsOf grad, x, grad_x;
  void* grad_weight = nullptr;         // [hidden], of the weight's type; null without weight
  float* grad_weight_parts = nullptr;  // scratch, [parts, hidden]; each part sums over some of the rows
  int parts = 0;
};

// The number of parts that a backward of this size sums in; 0 for no rows.
cudaError_t rms_norm_backward_parts(int64_t rows, int* parts);
cudaError_t rms_norm_backward(const RmsNormBackward& op, cudaStream_t stream);

}  // namespace row_ops
