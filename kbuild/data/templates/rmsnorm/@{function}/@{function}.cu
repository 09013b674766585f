@% if cuda %@
#include "@{function}.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.cuh"

namespace kernel {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr int kBytesPerAccess = 16;

// What one access moves. NB: it moves as one uint4; left to itself the compiler may split it into its elements.
template <typename T>
struct alignas(kBytesPerAccess) Pack {
  static constexpr int kSize = kBytesPerAccess / sizeof(T);
  T values[kSize];

  __device__ void load(const T* from) { *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values); }
};

// The sum over the threads of a row, handed to each of them: blockDim.x of them, a power of two up to a warp or a multiple
// of a warp. All threads of the block take part.
__device__ float row_sum(float value) {
  __shared__ alignas(16) float partial[kMaxThreads / kWarp];
  if (blockDim.x < kWarp) {  // a warp holds several rows
    for (int offset = blockDim.x / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (blockDim.x == kWarp) return value;
  const int warps = blockDim.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  float* row = partial + threadIdx.y * warps;
  if (lane == 0) row[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (warps == 8) {  // two wide reads are faster than another round of shuffles
    const float4 a = reinterpret_cast<const float4*>(row)[0];
    const float4 b = reinterpret_cast<const float4*>(row)[1];
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  }
  value = lane < warps ? row[lane] : 0.0f;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The threads that a multiprocessor is to hold at once, which keep the memory busy: 40 registers each, 64 on Turing.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kResident = 1024;
#else
constexpr int kResident = 1536;
#endif

// How many threads share a row at most, and how many such blocks a multiprocessor holds at least.
template <int kPacks>
struct Spread {
  static constexpr int kThreads = kPacks < 4 ? 256 : 512;
  static constexpr int kBlocks = kPacks < 4 ? kResident / kThreads : 1;
};

// The row in registers, kPacks packs a thread: each element is read once. A block is (threads of a row, rows).
// NB: not beyond 4 packs: the compiler keeps the converted floats, which for bf16 are twice as large.
template <typename T, int kPacks>
__global__ void __launch_bounds__(Spread<kPacks>::kThreads, Spread<kPacks>::kBlocks)
    @{function}_in_registers(T* out, const T* in, const T* __restrict__ weight, int64_t rows, int hidden, float eps) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  const int columns = row < rows ? hidden : 0;
  in += row * hidden;
  out += row * hidden;

  wait_for_previous_grid();
  Pack<T> x[kPacks];
  Pack<T> w[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {  // all loads before the first use
    const int column = (i * blockDim.x + threadIdx.x) * kSize;
    if (column >= columns) continue;
    x[i].load(in + column);
    if (weight != nullptr) w[i].load(weight + column);
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if ((i * blockDim.x + threadIdx.x) * kSize >= columns) continue;
#pragma unroll
    for (T value : x[i].values) squares += static_cast<float>(value) * static_cast<float>(value);
  }
  const float factor = rsqrtf(row_sum(squares) / hidden + eps);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int column = (i * blockDim.x + threadIdx.x) * kSize;
    if (column >= columns) continue;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float y = static_cast<float>(x[i].values[j]) * factor;
      x[i].values[j] = static_cast<T>(weight == nullptr ? y : y * static_cast<float>(w[i].values[j]));
    }
    x[i].store(out + column);
  }
}

// Any length and alignment: an element an access, and each row is read twice.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    @{function}_in_passes(T* out, const T* in, const T* __restrict__ weight, int64_t hidden, float eps) {
  in += int64_t(blockIdx.x) * hidden;
  out += int64_t(blockIdx.x) * hidden;
  wait_for_previous_grid();
  float squares = 0.0f;
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    const float x = static_cast<float>(in[c]);
    squares += x * x;
  }
  const float factor = rsqrtf(row_sum(squares) / static_cast<float>(hidden) + eps);
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    const float y = static_cast<float>(in[c]) * factor;
    out[c] = static_cast<T>(weight == nullptr ? y : y * static_cast<float>(weight[c]));
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kBytesPerAccess == 0; }

// How many threads share a row of `items`: a power of two within a warp, whole warps beyond.
int threads_for(int64_t items) {
  if (items > kWarp) return static_cast<int>((items + kWarp - 1) / kWarp * kWarp);
  int threads = 1;
  while (threads < items) threads *= 2;
  return threads;
}

template <typename T, int kPacks>
cudaError_t launch_in_registers(T* out, const T* in, const T* weight, int64_t rows, int hidden, float eps,
                                cudaStream_t stream) {
  constexpr int kMinThreads = 128;  // a block of short rows holds several
  const int threads = threads_for((hidden / Pack<T>::kSize + kPacks - 1) / kPacks);
  const int per_block = threads < kMinThreads ? kMinThreads / threads : 1;
  const auto blocks = static_cast<unsigned>((rows + per_block - 1) / per_block);
  return launch_overlapping(@{function}_in_registers<T, kPacks>, dim3(blocks), dim3(threads, per_block), 0, stream, out, in,
                            weight, rows, hidden, eps);
}

template <typename T>
const char* run(void* out_, const void* in_, const void* weight_, int64_t rows, int64_t hidden, float eps,
                cudaStream_t stream) {
  if (rows == 0 || hidden == 0) return nullptr;
  if (rows > INT32_MAX) return "more than 2**31 - 1 rows";
  T* out = static_cast<T*>(out_);
  const T* in = static_cast<const T*>(in_);
  const T* weight = static_cast<const T*>(weight_);
  const bool wide = hidden % Pack<T>::kSize == 0 && aligned(out) && aligned(in) && aligned(weight);
  const int64_t packs = hidden / Pack<T>::kSize;
  const int width = static_cast<int>(wide && packs <= 4 * Spread<4>::kThreads ? hidden : 0);
  cudaError_t error;
  if (width == 0) {
    const int threads = threads_for(hidden < kWarp ? kWarp : hidden < kMaxThreads ? hidden : kMaxThreads);
    error = launch_overlapping(@{function}_in_passes<T>, dim3(static_cast<unsigned>(rows)), dim3(threads), 0, stream, out,
                               in, weight, hidden, eps);
  } else if (packs <= Spread<1>::kThreads) {
    error = launch_in_registers<T, 1>(out, in, weight, rows, width, eps, stream);
  } else if (packs <= 2 * Spread<2>::kThreads) {
    error = launch_in_registers<T, 2>(out, in, weight, rows, width, eps, stream);
  } else {
    error = launch_in_registers<T, 4>(out, in, weight, rows, width, eps, stream);
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* @{function}(void* out, const void* in, const void* weight, int64_t rows, int64_t hidden, float eps,
                     Scalar scalar, void* stream) {
  switch (scalar) {
    case Scalar::kFloat32:
      return run<float>(out, in, weight, rows, hidden, eps, static_cast<cudaStream_t>(stream));
    case Scalar::kFloat16:
      return run<__half>(out, in, weight, rows, hidden, eps, static_cast<cudaStream_t>(stream));
    case Scalar::kBFloat16:
      return run<__nv_bfloat16>(out, in, weight, rows, hidden, eps, static_cast<cudaStream_t>(stream));
  }
  return "unknown dtype";
}

}  // namespace kernel
@% endif %@
