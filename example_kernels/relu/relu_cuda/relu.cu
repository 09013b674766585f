#include "relu.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int kThreads = 256;
constexpr int kVectorBytes = 16;
constexpr int64_t kMaxBlocks = int64_t(1) << 30;

template <typename T>
struct alignas(kVectorBytes) Vector {
  static constexpr int kSize = kVectorBytes / sizeof(T);
  T values[kSize];
};

template <typename T>
__device__ T relu(T x) {
  const float value = static_cast<float>(x);
  return value < 0.0f ? static_cast<T>(0.0f) : x;
}

// One 16-byte vector a thread where both pointers allow it (`vectors` of them), one element a thread for the rest.
template <typename T>
__global__ __launch_bounds__(kThreads) void relu_kernel(T* __restrict__ out, const T* __restrict__ in, int64_t n,
                                                        int64_t vectors) {
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  const int64_t first = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < vectors; i += stride) {
    Vector<T> v = reinterpret_cast<const Vector<T>*>(in)[i];
#pragma unroll
    for (T& x : v.values) {
      x = relu(x);
    }
    reinterpret_cast<Vector<T>*>(out)[i] = v;
  }
  for (int64_t i = vectors * Vector<T>::kSize + first; i < n; i += stride) {
    out[i] = relu(in[i]);
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0; }

template <typename T>
cudaError_t launch(void* out, const void* in, int64_t n, cudaStream_t stream) {
  const int64_t vectors = aligned(out) && aligned(in) ? n / Vector<T>::kSize : 0;
  const int64_t items = vectors > 0 ? vectors : n;
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  relu_kernel<T><<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(
      static_cast<T*>(out), static_cast<const T*>(in), n, vectors);
  return cudaGetLastError();
}

}  // namespace

cudaError_t relu_cuda(void* out, const void* in, int64_t n, ReluType type, cudaStream_t stream) {
  if (n == 0) {
    return cudaSuccess;
  }
  switch (type) {
    case ReluType::kFloat32:
      return launch<float>(out, in, n, stream);
    case ReluType::kFloat16:
      return launch<__half>(out, in, n, stream);
    case ReluType::kBFloat16:
      return launch<__nv_bfloat16>(out, in, n, stream);
  }
  return cudaErrorInvalidValue;
}
