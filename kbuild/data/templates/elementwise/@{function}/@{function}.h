// @{function}(x) = x / (1 + exp(-x)), element by element. No torch headers.
#pragma once

#include <cstdint>

// NB: hidden, so that two kernels in one process never share these symbols.
namespace [[gnu::visibility("hidden")]] kernel {

enum class Scalar { kFloat32, kFloat16, kBFloat16 };

// out[i] = @{function}(in[i]) for i < n, computed in float32. `stream` is a cudaStream_t, and unused on the CPU.
// Returns null, or what went wrong.
const char* @{function}(void* out, const void* in, int64_t n, Scalar scalar, void* stream);

}  // namespace kernel
