// What row kernels share: moving slices of a row through registers, addressing rows, summing over a row, launching.
// No torch headers. The file is the same in every example project that has row kernels; a test compares them.
//
// A block is (threads per row, rows per block). Slice i of a row belongs to thread threadIdx.x at column
// (i * blockDim.x + threadIdx.x) * Width, so that the accesses of a warp are contiguous.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// NB: hidden, so that two loaded kernels never share these symbols.
namespace [[gnu::visibility("hidden")]] rows {

constexpr int kWarp = 32;
constexpr int kMaxBlock = 1024;
constexpr int kBytesPerAccess = 16;

// Float from and to the storage types, in the 32-bit words that registers hold.
template <typename T>
struct Element;

template <>
struct Element<float> {
  static constexpr int kPerWord = 1;
  __device__ static void unpack(uint32_t word, float* to) { to[0] = __uint_as_float(word); }
  __device__ static uint32_t pack(const float* from) { return __float_as_uint(from[0]); }
};

template <>
struct Element<__half> {
  static constexpr int kPerWord = 2;
  __device__ static void unpack(uint32_t word, float* to) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
    to[0] = pair.x;
    to[1] = pair.y;
  }
  __device__ static uint32_t pack(const float* from) {
    const __half2 pair = __floats2half2_rn(from[0], from[1]);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

template <>
struct Element<__nv_bfloat16> {
  static constexpr int kPerWord = 2;
  __device__ static void unpack(uint32_t word, float* to) {
    to[0] = __uint_as_float(word << 16);
    to[1] = __uint_as_float(word & 0xffff0000u);
  }
  __device__ static uint32_t pack(const float* from) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

// The elements that one access moves.
template <typename T>
constexpr int kFullWidth = kBytesPerAccess / static_cast<int>(sizeof(T));

// `Width` neighbouring elements as they lie in memory, aligned to an access.
// NB: the registers are uint4, since the compiler splits the load of a struct of smaller parts into 4-byte loads.
template <typename T, int Width>
struct Slice {
  static constexpr int kAccesses = Width * static_cast<int>(sizeof(T)) / kBytesPerAccess;
  static constexpr int kPerWord = Element<T>::kPerWord;
  static_assert(kAccesses * kBytesPerAccess == Width * sizeof(T), "a slice is a whole number of accesses");
  uint4 access[kAccesses];

  __device__ void load(const T* source) {
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) access[i] = reinterpret_cast<const uint4*>(source)[i];
  }
  __device__ void store(T* target) const {
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) reinterpret_cast<uint4*>(target)[i] = access[i];
  }
  __device__ void unpack(float (&to)[Width]) const {
    constexpr int kPerAccess = kFullWidth<T>;
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      Element<T>::unpack(access[i].x, to + i * kPerAccess);
      Element<T>::unpack(access[i].y, to + i * kPerAccess + kPerWord);
      Element<T>::unpack(access[i].z, to + i * kPerAccess + 2 * kPerWord);
      Element<T>::unpack(access[i].w, to + i * kPerAccess + 3 * kPerWord);
    }
  }
  __device__ void pack(const float (&from)[Width]) {
    constexpr int kPerAccess = kFullWidth<T>;
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      access[i].x = Element<T>::pack(from + i * kPerAccess);
      access[i].y = Element<T>::pack(from + i * kPerAccess + kPerWord);
      access[i].z = Element<T>::pack(from + i * kPerAccess + 2 * kPerWord);
      access[i].w = Element<T>::pack(from + i * kPerAccess + 3 * kPerWord);
    }
  }
  // Makes the compiler unpack again after this point: the floats it would keep take twice the registers.
  __device__ void stay_packed() {
#pragma unroll
    for (int i = 0; i < kAccesses; ++i)
      asm volatile("" : "+r"(access[i].x), "+r"(access[i].y), "+r"(access[i].z), "+r"(access[i].w));
  }
  __device__ void fill(float value) {
    float values[Width];
#pragma unroll
    for (int i = 0; i < Width; ++i) values[i] = value;
    pack(values);
  }
};

// One element, wherever it lies.
template <typename T>
struct Slice<T, 1> {
  T element;

  __device__ void load(const T* source) { element = *source; }
  __device__ void store(T* target) const { *target = element; }
  __device__ void unpack(float (&to)[1]) const { to[0] = static_cast<float>(element); }
  __device__ void pack(const float (&from)[1]) { element = static_cast<T>(from[0]); }
  __device__ void stay_packed() {}
  __device__ void fill(float value) { element = static_cast<T>(value); }
};

// A matrix of rows: `data` null means that the operand is absent. Rows come in groups of `inner_rows` (see RowIndex), so
// that slices such as the q of a packed qkv need no copy. Strides count elements.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t outer = 0;
  int64_t inner = 0;
};

struct RowIndex {
  int64_t group;
  int64_t member;

  __device__ explicit RowIndex(int64_t row) : group(0), member(row) {}  // evenly spaced rows

  __device__ RowIndex(int64_t row, int64_t inner_rows, int64_t rows) {
    if (inner_rows >= rows) {
      group = 0;
    } else if (rows <= INT32_MAX) {  // a 64-bit division costs as much as the rest of a short row
      group = static_cast<uint32_t>(row) / static_cast<uint32_t>(inner_rows);
    } else {
      group = row / inner_rows;
    }
    member = row - group * inner_rows;
  }

  // The row `count` further on, of the same group.
  __device__ RowIndex next(int count) const {
    RowIndex index(*this);
    index.member += count;
    return index;
  }

  template <typename T>
  __device__ T* of(const Rows<T>& rows) const {
    return rows.data + group * rows.outer + member * rows.inner;
  }
};

// Waits for the grids before this one in the stream, then lets the next one begin its launch: under programmatic launch
// its set-up overlaps this grid's work. Address arithmetic belongs before the call. NB: no memory may be touched before it.
__device__ inline void wait_for_previous_grid() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Sums each of N values over the threads of a row and hands every one of them the result. blockDim.x is a power of two
// up to a warp, or a multiple of a warp. `scratch` holds N floats for each of 32 warps and must differ from that of the
// call before. All threads of the block take part.
template <int N>
__device__ void row_sum(float (&value)[N], float (&scratch)[N][kMaxBlock / kWarp]) {
  if (blockDim.x < kWarp) {
    for (int offset = blockDim.x / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] += __shfl_xor_sync(0xffffffffu, value[i], offset);
    }
    return;
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] += __shfl_xor_sync(0xffffffffu, value[i], offset);
  }
  if (blockDim.x == kWarp) return;
  const int warps = blockDim.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int first = threadIdx.y * warps;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) scratch[i][first + threadIdx.x / kWarp] = value[i];
  }
  __syncthreads();
  if (warps == 4 || warps == 8) {  // a few wide reads are faster than another round of shuffles
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(&scratch[i][first]);
      value[i] = (a.x + a.y) + (a.z + a.w);
      if (warps == 8) {
        const float4 b = *reinterpret_cast<const float4*>(&scratch[i][first + 4]);
        value[i] += (b.x + b.y) + (b.z + b.w);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = lane < warps ? scratch[i][first + lane] : 0.0f;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] += __shfl_xor_sync(0xffffffffu, value[i], offset);
  }
}

__device__ inline void row_sum(float& value, float (&scratch)[kMaxBlock / kWarp]) {
  row_sum<1>(reinterpret_cast<float (&)[1]>(value), reinterpret_cast<float (&)[1][kMaxBlock / kWarp]>(scratch));
}

// The mean of a row and the sum of squares around it.
struct Moments {
  float mean;
  float squares;
};

// Merges the moments of the threads of a row, each over `count` values, pairwise (Chan, Golub and LeVeque): one barrier,
// and no cancellation where the mean is large. blockDim.x is a multiple of a warp; `means` and `sums` are scratch as
// for row_sum.
__device__ inline Moments row_moments(Moments of, float count, float (&means)[kMaxBlock / kWarp],
                                     float (&sums)[kMaxBlock / kWarp]) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float mean = __shfl_xor_sync(0xffffffffu, of.mean, offset);
    const float squares = __shfl_xor_sync(0xffffffffu, of.squares, offset);
    const float apart = mean - of.mean;
    of.squares += squares + apart * apart * (0.5f * count);
    of.mean = 0.5f * (of.mean + mean);
    count *= 2.0f;
  }
  if (blockDim.x == kWarp) return of;
  const int warps = blockDim.x / kWarp;
  const int first = threadIdx.y * warps;
  if (threadIdx.x % kWarp == 0) {
    means[first + threadIdx.x / kWarp] = of.mean;
    sums[first + threadIdx.x / kWarp] = of.squares;
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const auto over_warps = [&](float value) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      if (offset < warps) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return __shfl_sync(0xffffffffu, value, 0);
  };
  const float mean = lane < warps ? means[first + lane] : 0.0f;
  const float squares = lane < warps ? sums[first + lane] : 0.0f;
  const float all = over_warps(mean) / static_cast<float>(warps);
  const float apart = lane < warps ? mean - all : 0.0f;
  return {all, over_warps(squares + count * apart * apart)};
}

// ---- host side ----

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline bool fits_wide(const void* data) { return reinterpret_cast<uintptr_t>(data) % kBytesPerAccess == 0; }

// Whether every row starts where a 16-byte access may; absent operands do.
template <typename T>
bool fits_wide(const Rows<T>& rows) {
  constexpr int kWidth = kFullWidth<T>;
  return fits_wide(rows.data) && rows.outer % kWidth == 0 && rows.inner % kWidth == 0;
}

struct Block {
  int threads_per_row;
  int rows_per_block;
};

// The block for rows of `slices` slices, `per_thread` of them to a thread: several rows where one has few threads, and at
// most `max_threads`, which the longest row must fit.
inline Block block_for(int64_t slices, int per_thread, int max_threads) {
  constexpr int kEnough = 128;
  int64_t threads = ceil_div(slices, per_thread);
  if (threads >= kWarp) {
    threads = ceil_div(threads, kWarp) * kWarp;
  } else {
    int64_t power = 1;
    while (power < threads) power *= 2;
    threads = power;
  }
  const int per_row = static_cast<int>(threads);
  int per_block = 1;
  while (per_row * per_block < kEnough && per_row * per_block * 2 <= max_threads) per_block *= 2;
  return {per_row, per_block};
}

// NB: internal linkage; the static of an inline or template function would become a symbol that two loaded kernels share.
static inline cudaError_t capability_major(int* major) {
  constexpr int kDevices = 64;
  static int known[kDevices];  // 0: not asked yet; threads that race write the same value
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device < kDevices && known[device] != 0) {
    *major = known[device];
    return cudaSuccess;
  }
  if (cudaError_t error = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device); error != cudaSuccess)
    return error;
  if (device < kDevices) known[device] = *major;
  return cudaSuccess;
}

// Launches with programmatic stream serialization where the device has it (compute capability 9.0 and later). The kernel
// must call wait_for_previous_grid() first.
template <typename Args>
cudaError_t launch(void (*kernel)(Args), const Args& args, dim3 grid, dim3 block, cudaStream_t stream) {
  int major = 0;
  if (cudaError_t error = capability_major(&major); error != cudaSuccess) return error;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}
}  // namespace rows
