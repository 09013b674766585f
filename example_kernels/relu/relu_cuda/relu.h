#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

enum class ReluType { kFloat32, kFloat16, kBFloat16 };

// out[i] = max(in[i], 0) for i < n on `stream`; a NaN stays a NaN, as in torch.relu.
cudaError_t relu_cuda(void* out, const void* in, int64_t n, ReluType type, cudaStream_t stream);
