@% if cuda %@
#include "@{function}.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.cuh"

namespace kernel {
namespace {

constexpr int kThreads = 256;
constexpr int kBytesPerAccess = 16;
constexpr int64_t kMaxBlocks = int64_t(1) << 30;

// What one access moves. NB: it moves as one uint4; left to itself the compiler may split it into its elements.
template <typename T>
struct alignas(kBytesPerAccess) Pack {
  static constexpr int kSize = kBytesPerAccess / sizeof(T);
  T values[kSize];

  __device__ void load(const T* from) { *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values); }
};

// The operation: change this, the reference and the derivative, and the rest stays.
__device__ float apply(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// A pack a thread as long as both pointers allow it (`packs` of them), an element a thread for the rest.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    elementwise(T* __restrict__ out, const T* __restrict__ in, int64_t n, int64_t packs) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t first = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  wait_for_previous_grid();
  // NB: unrolled, these loops spill registers; they mostly run once.
#pragma unroll 1
  for (int64_t i = first; i < packs; i += stride) {
    Pack<T> pack;
    pack.load(in + i * kSize);
#pragma unroll
    for (T& value : pack.values) value = static_cast<T>(apply(static_cast<float>(value)));
    pack.store(out + i * kSize);
  }
#pragma unroll 1
  for (int64_t i = packs * kSize + first; i < n; i += stride) {
    out[i] = static_cast<T>(apply(static_cast<float>(in[i])));
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kBytesPerAccess == 0; }

template <typename T>
const char* run(void* out, const void* in, int64_t n, cudaStream_t stream) {
  if (n == 0) return nullptr;
  const int64_t packs = aligned(out) && aligned(in) ? n / Pack<T>::kSize : 0;
  const int64_t items = packs > 0 ? packs : n;
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
  const cudaError_t error = launch_overlapping(elementwise<T>, grid, dim3(kThreads), 0, stream, static_cast<T*>(out),
                                               static_cast<const T*>(in), n, packs);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* @{function}(void* out, const void* in, int64_t n, Scalar scalar, void* stream) {
  switch (scalar) {
    case Scalar::kFloat32:
      return run<float>(out, in, n, static_cast<cudaStream_t>(stream));
    case Scalar::kFloat16:
      return run<__half>(out, in, n, static_cast<cudaStream_t>(stream));
    case Scalar::kBFloat16:
      return run<__nv_bfloat16>(out, in, n, static_cast<cudaStream_t>(stream));
  }
  return "unknown dtype";
}

}  // namespace kernel
@% endif %@
