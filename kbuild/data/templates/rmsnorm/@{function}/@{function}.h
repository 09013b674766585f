// RMSNorm over the last dimension. No torch headers.
#pragma once

#include <cstdint>

// NB: hidden, so that two kernels in one process never share these symbols.
namespace [[gnu::visibility("hidden")]] kernel {

enum class Scalar { kFloat32, kFloat16, kBFloat16 };

// out[r, c] = in[r, c] / sqrt(mean(in[r, :]^2) + eps) * weight[c], computed in float32. Both are [rows, hidden] and
// contiguous; `weight` is [hidden] of the same dtype, or null for none. `stream` is a cudaStream_t, and unused on the CPU.
// Returns null, or what went wrong.
const char* @{function}(void* out, const void* in, const void* weight, int64_t rows, int64_t hidden, float eps,
                     Scalar scalar, void* stream);

}  // namespace kernel
