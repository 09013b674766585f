// With r = 1 / sqrt(mean(x^2) + eps), g the incoming gradient and w the weight:
//   grad_x = r * g * w - x * r^3 * mean(g * w * x),   grad_weight = sum over rows of g * x * r.
// r is computed again from x, which is read anyway, so the forward saves nothing.
#include "rms_norm.h"
#include "rows.cuh"

namespace row_ops {
namespace {

using rows::RowIndex;
using rows::Rows;
using rows::Slice;

template <typename T, typename W>
struct Args {
  Rows<const T> grad, x;
  Rows<T> grad_x;
  const W* weight;
  float* parts;
  int64_t rows;
  int64_t inner_rows;
  int hidden;
  float eps;
};

constexpr int kThreads = 512;
constexpr int kBlocksPerMultiprocessor = 2;

template <int kWidth>
struct Weighted {
  float x[kWidth];
  float g[kWidth];   // the gradient
  float gw[kWidth];  // the gradient times the weight
};

template <typename T, typename W, int kWidth>
__device__ Weighted<kWidth> weigh(const Slice<T, kWidth>& x, const Slice<T, kWidth>& grad,
                                  const Slice<W, kWidth>* weight) {
  Weighted<kWidth> v;
  x.unpack(v.x);
  grad.unpack(v.g);
  grad.unpack(v.gw);
  if (weight != nullptr) {
    float w[kWidth];
    weight->unpack(w);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v.gw[j] *= w[j];
  }
  return v;
}

template <int kWidth>
__device__ void accumulate(float (&total)[2], const Weighted<kWidth>& v) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    total[0] += v.x[j] * v.x[j];
    total[1] += v.gw[j] * v.x[j];
  }
}

struct Factors {
  float scale;  // r
  float pull;   // r^3 * mean(g * w * x)

  __device__ Factors(const float (&total)[2], int hidden, float eps) {
    const float count = static_cast<float>(hidden);
    scale = rsqrtf(total[0] / count + eps);
    pull = scale * scale * scale * (total[1] / count);
  }
};

// One row of threads a block, over rows blockIdx.x, blockIdx.x + gridDim.x, …; the weight's gradient stays in registers
// until the last of them.
template <typename T, typename W, int kSlices>
__global__ void __launch_bounds__(kThreads) in_registers(const Args<T, W> args) {
  constexpr int kWidth = rows::kFullWidth<T>;
  __shared__ alignas(16) float scratch[2][2][rows::kMaxBlock / rows::kWarp];
  rows::wait_for_previous_grid();

  const auto column_of = [](int i) { return (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWidth; };
  Slice<W, kWidth> weight[kSlices];
  float part[kSlices][kWidth] = {};
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (args.weight != nullptr && column_of(i) < args.hidden) weight[i].load(args.weight + column_of(i));

  int parity = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, parity ^= 1) {
    const RowIndex index(row, args.inner_rows, args.rows);
    Slice<T, kWidth> x[kSlices];
    Slice<T, kWidth> grad[kSlices];
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      if (column_of(i) >= args.hidden) continue;
      x[i].load(index.of(args.x) + column_of(i));
      grad[i].load(index.of(args.grad) + column_of(i));
    }
    float total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (column_of(i) < args.hidden)
        accumulate(total, weigh<T, W, kWidth>(x[i], grad[i], args.weight != nullptr ? &weight[i] : nullptr));
    rows::row_sum(total, scratch[parity]);
    const Factors factors(total, args.hidden, args.eps);
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      if (column_of(i) >= args.hidden) continue;
      auto v = weigh<T, W, kWidth>(x[i], grad[i], args.weight != nullptr ? &weight[i] : nullptr);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        part[i][j] += v.g[j] * v.x[j] * factors.scale;
        v.gw[j] = v.gw[j] * factors.scale - v.x[j] * factors.pull;
      }
      Slice<T, kWidth> grad_x;
      grad_x.pack(v.gw);
      grad_x.store(index.of(args.grad_x) + column_of(i));
    }
  }
  if (args.parts == nullptr) return;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (column_of(i) >= args.hidden) continue;
    Slice<float, kWidth> sum;
    sum.pack(part[i]);
    sum.store(args.parts + static_cast<int64_t>(blockIdx.x) * args.hidden + column_of(i));
  }
}

// Any length and alignment: the row is read twice, and a block's part of the weight's gradient lives in its own row of
// `parts`.
template <typename T, typename W, int kWidth>
__global__ void __launch_bounds__(kThreads) in_passes(const Args<T, W> args) {
  __shared__ alignas(16) float scratch[2][2][rows::kMaxBlock / rows::kWarp];
  rows::wait_for_previous_grid();

  float* part = args.parts + static_cast<int64_t>(blockIdx.x) * args.hidden;
  int parity = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, parity ^= 1) {
    const RowIndex index(row, args.inner_rows, args.rows);
    const auto read = [&](int column) {
      Slice<T, kWidth> x;
      Slice<T, kWidth> grad;
      Slice<W, kWidth> weight;
      x.load(index.of(args.x) + column);
      grad.load(index.of(args.grad) + column);
      if (args.weight != nullptr) weight.load(args.weight + column);
      return weigh<T, W, kWidth>(x, grad, args.weight != nullptr ? &weight : nullptr);
    };
    const int first = threadIdx.x * kWidth;
    const int step = blockDim.x * kWidth;
    float total[2] = {0.0f, 0.0f};
    for (int column = first; column < args.hidden; column += step) accumulate(total, read(column));
    rows::row_sum(total, scratch[parity]);
    const Factors factors(total, args.hidden, args.eps);
    for (int column = first; column < args.hidden; column += step) {
      auto v = read(column);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (args.parts != nullptr) {
          const float before = row == blockIdx.x ? 0.0f : part[column + j];
          part[column + j] = before + v.g[j] * v.x[j] * factors.scale;
        }
        v.gw[j] = v.gw[j] * factors.scale - v.x[j] * factors.pull;
      }
      Slice<T, kWidth> grad_x;
      grad_x.pack(v.gw);
      grad_x.store(index.of(args.grad_x) + column);
    }
  }
}

template <typename W>
struct SumArgs {
  const float* parts;
  W* sum;
  int parts_count;
  int hidden;
};

constexpr int kColumns = 32;
constexpr int kPartsAtOnce = 16;

// sum[c] = parts[0][c] + parts[1][c] + …, in an order that does not depend on timing.
template <typename W>
__global__ void __launch_bounds__(kColumns* kPartsAtOnce) sum_parts(const SumArgs<W> args) {
  __shared__ float partial[kPartsAtOnce][kColumns];
  rows::wait_for_previous_grid();
  const int column = blockIdx.x * kColumns + threadIdx.x;
  float total = 0.0f;
  if (column < args.hidden) {
#pragma unroll 4
    for (int p = threadIdx.y; p < args.parts_count; p += kPartsAtOnce)
      total += args.parts[static_cast<int64_t>(p) * args.hidden + column];
  }
  partial[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= args.hidden) return;
  total = 0.0f;
  for (int p = 0; p < kPartsAtOnce; ++p) total += partial[p][threadIdx.x];
  args.sum[column] = static_cast<W>(total);
}

template <typename T, typename W>
cudaError_t grad_x_and_parts(const RmsNormBackward& op, cudaStream_t stream) {
  constexpr int kWidth = rows::kFullWidth<T>;
  Args<T, W> args = {};
  args.grad = {static_cast<const T*>(op.grad.data), op.grad.outer, op.grad.inner};
  args.x = {static_cast<const T*>(op.x.data), op.x.outer, op.x.inner};
  args.grad_x = {static_cast<T*>(op.grad_x.data), op.grad_x.outer, op.grad_x.inner};
  args.weight = static_cast<const W*>(op.weight);
  args.parts = op.grad_weight_parts;
  args.rows = op.rows;
  args.inner_rows = op.inner_rows;
  args.hidden = op.hidden;
  args.eps = op.eps;
  if (args.rows == 0 || args.hidden == 0) return cudaSuccess;

  const bool wide = args.hidden % kWidth == 0 && rows::fits_wide(args.grad) && rows::fits_wide(args.x) &&
                    rows::fits_wide(args.grad_x) && rows::fits_wide(args.weight) && rows::fits_wide(args.parts);
  const int64_t slices = wide ? args.hidden / kWidth : args.hidden;
  const dim3 grid(static_cast<unsigned>(op.parts));
  const auto threads = [&](int per_thread) {
    const int64_t needed = rows::ceil_div(rows::ceil_div(slices, per_thread), rows::kWarp) * rows::kWarp;
    return dim3(static_cast<unsigned>(needed < kThreads ? needed : kThreads));
  };
  if (!wide) return rows::launch(in_passes<T, W, 1>, args, grid, threads(1), stream);
  if (slices <= kThreads) return rows::launch(in_registers<T, W, 1>, args, grid, threads(1), stream);
  if (slices <= 2 * kThreads) return rows::launch(in_registers<T, W, 2>, args, grid, threads(2), stream);
  return rows::launch(in_passes<T, W, kWidth>, args, grid, dim3(kThreads), stream);
}

template <typename T, typename W>
cudaError_t run(const RmsNormBackward& op, cudaStream_t stream) {
  if (cudaError_t error = grad_x_and_parts<T, W>(op, stream); error != cudaSuccess) return error;
  if (op.grad_weight == nullptr || op.hidden == 0) return cudaSuccess;
  const SumArgs<W> args = {op.grad_weight_parts, static_cast<W*>(op.grad_weight), op.parts, op.hidden};
  const dim3 grid(static_cast<unsigned>(rows::ceil_div(op.hidden, kColumns)));
  return rows::launch(sum_parts<W>, args, grid, dim3(kColumns, kPartsAtOnce), stream);
}

template <typename T>
cudaError_t with_weight_type(const RmsNormBackward& op, cudaStream_t stream) {
  return op.weight_type == op.type ? run<T, T>(op, stream) : run<T, float>(op, stream);
}

}  // namespace

cudaError_t rms_norm_backward_parts(int64_t rows, int* parts) {
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  int multiprocessors = 0;
  if (cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  const int most = multiprocessors * kBlocksPerMultiprocessor;
  *parts = rows < most ? static_cast<int>(rows) : most;
  return cudaSuccess;
}

cudaError_t rms_norm_backward(const RmsNormBackward& op, cudaStream_t stream) {
  switch (op.type) {
    case Scalar::kFloat:
      return run<float, float>(op, stream);
    case Scalar::kHalf:
      return with_weight_type<__half>(op, stream);
    case Scalar::kBFloat16:
      return with_weight_type<__nv_bfloat16>(op, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace row_ops
