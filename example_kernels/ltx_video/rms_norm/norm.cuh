// y = normalise(s) * weight * (1 + scale) + shift over the last dimension, with s = x, or s = residual + x * gate, which
// is then written out too. Normalise is x / sqrt(mean(x^2) + eps), or (x - mean) / sqrt(variance + eps).
// No torch headers. The directory is the same in every example project that normalises; a test compares them.
#pragma once

#include "rows.cuh"

namespace [[gnu::visibility("hidden")]] rows {

enum class Centre { kNone, kMean };  // RMSNorm, LayerNorm

template <typename T_, typename W_, bool kResidual_, bool kModulated_, Centre kCentre_>
struct Norm {
  using T = T_;
  using W = W_;
  static constexpr bool kResidual = kResidual_;    // s = residual + x * gate
  static constexpr bool kModulated = kModulated_;  // scale, shift and (with a residual) gate
  static constexpr Centre kCentre = kCentre_;
};

template <typename T, typename W>
struct NormArgs {
  Rows<const T> x, residual, gate, scale, shift;  // gate may be absent
  Rows<T> out, sum;
  const W* weight;  // may be null
  int64_t rows;
  int64_t inner_rows;
  int hidden;
  float inverse_hidden;
  float eps;
};

// How a row is spread over threads. Registers a thread may use: 65536 over the threads of a multiprocessor.
template <int kSlices_, int kThreads_, int kBlocks_, bool kEarly_>
struct Spread {
  static constexpr int kSlices = kSlices_;    // a thread's share of the row
  static constexpr int kThreads = kThreads_;  // at most, a block
  static constexpr int kBlocks = kBlocks_;    // at least, a multiprocessor
  static constexpr bool kEarly = kEarly_;     // weight, scale and shift are loaded before the sum, not after it
  static constexpr int kMostSlices = kSlices * kThreads;
};

// The slices of one thread at one column.
template <typename Traits, int kWidth>
struct Operands {
  using T = typename Traits::T;
  Slice<T, kWidth> s;  // x, then s
  Slice<T, kWidth> residual;
  Slice<T, kWidth> gate;
  Slice<T, kWidth> scale, shift;
  Slice<typename Traits::W, kWidth> weight;

  using Args = NormArgs<T, typename Traits::W>;

  __device__ void load_s(const Args& args, const RowIndex& index, int column) {
    s.load(index.of(args.x) + column);
    if constexpr (Traits::kResidual) residual.load(index.of(args.residual) + column);
  }

  __device__ void load_gate(const Args& args, const RowIndex& index, int column) {
    if constexpr (Traits::kResidual && Traits::kModulated) {
      if (args.gate.data != nullptr) {
        gate.load(index.of(args.gate) + column);
      } else {
        gate.fill(1.0f);
      }
    }
  }

  __device__ void load_rest(const Args& args, const RowIndex& index, int column) {
    if constexpr (Traits::kModulated) {
      scale.load(index.of(args.scale) + column);
      shift.load(index.of(args.shift) + column);
    } else if (args.weight != nullptr) {
      weight.load(args.weight + column);
    } else {
      weight.fill(1.0f);
    }
  }

  // s = residual + x * gate, rounded to T as the model that adds first and normalises then has it, and written.
  __device__ void add(const Args& args, const RowIndex& index, int column) {
    if constexpr (Traits::kResidual) {
      float value[kWidth];
      float other[kWidth];
      s.unpack(value);
      if constexpr (Traits::kModulated) {
        gate.unpack(other);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) value[j] *= other[j];
      }
      residual.unpack(other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] += other[j];
      s.pack(value);
      s.store(index.of(args.sum) + column);
    }
  }

  __device__ void accumulate_mean(float& total) {
    float value[kWidth];
    s.stay_packed();
    s.unpack(value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total += value[j];
  }

  __device__ void accumulate_around(float mean, float& total) {
    float value[kWidth];
    s.stay_packed();
    s.unpack(value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total += (value[j] - mean) * (value[j] - mean);
  }

  __device__ void finish(const Args& args, const RowIndex& index, int column, float mean, float factor) {
    float value[kWidth];
    float other[kWidth];
    s.stay_packed();
    s.unpack(value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] = (value[j] - mean) * factor;
    if constexpr (Traits::kModulated) {
      scale.unpack(other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] *= 1.0f + other[j];
      shift.unpack(other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] += other[j];
    } else {
      weight.stay_packed();
      weight.unpack(other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] *= other[j];
    }
    Slice<T, kWidth> out;
    out.pack(value);
    out.store(index.of(args.out) + column);
  }
};

// The row in registers: each operand is read once, its loads before the first use. kPlain: whole warps share a row,
// blockDim.x * kSlices slices are the row, and the blocks cover the rows exactly; without modulation the rows are also
// evenly spaced (no groups).
template <typename Traits, typename Spread, bool kPlain>
__global__ void __launch_bounds__(Spread::kThreads, Spread::kBlocks)
    norm_in_registers(const NormArgs<typename Traits::T, typename Traits::W> args) {
  constexpr int kWidth = kFullWidth<typename Traits::T>;
  constexpr int kSlices = Spread::kSlices;
  __shared__ alignas(16) float scratch[2][kMaxBlock / kWarp];

  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  // NB: threads past the last row touch no memory, but stay for the barriers of row_sum.
  const bool live = kPlain || row < args.rows;
  const RowIndex index =
      kPlain && !Traits::kModulated ? RowIndex(row) : RowIndex(row, args.inner_rows, args.rows);
  // A plain row's slices are a constant apart, which costs no registers for their addresses.
  const int warp = threadIdx.x / kWarp;
  const int first = kPlain ? warp * kWarp * kSlices + threadIdx.x % kWarp : threadIdx.x;
  const int step = kPlain ? kWarp : blockDim.x;
  const auto column_of = [&](int i) { return (first + i * step) * kWidth; };
  const auto in_row = [&](int i) { return kPlain || (live && column_of(i) < args.hidden); };
  wait_for_previous_grid();

  Operands<Traits, kWidth> operands[kSlices];
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (in_row(i)) operands[i].load_s(args, index, column_of(i));
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (in_row(i)) operands[i].load_gate(args, index, column_of(i));
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (Spread::kEarly && in_row(i)) operands[i].load_rest(args, index, column_of(i));

#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (in_row(i)) operands[i].add(args, index, column_of(i));
  float mean = 0.0f;
  float total = 0.0f;
  if constexpr (Traits::kCentre == Centre::kNone) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[i].accumulate_around(0.0f, total);
    row_sum(total, scratch[0]);
  } else if constexpr (kPlain) {
    Moments moments = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kSlices; ++i) operands[i].accumulate_mean(moments.mean);
    moments.mean *= 1.0f / (kSlices * kWidth);
#pragma unroll
    for (int i = 0; i < kSlices; ++i) operands[i].accumulate_around(moments.mean, moments.squares);
    moments = row_moments(moments, kSlices * kWidth, scratch);
    mean = moments.mean;
    total = moments.squares;
  } else {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[i].accumulate_mean(total);
    row_sum(total, scratch[0]);
    mean = total * args.inverse_hidden;
    total = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[i].accumulate_around(mean, total);
    row_sum(total, scratch[1]);
  }
  const float factor = rsqrtf(total * args.inverse_hidden + args.eps);
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (!Spread::kEarly && in_row(i)) operands[i].load_rest(args, index, column_of(i));
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (in_row(i)) operands[i].finish(args, index, column_of(i), mean, factor);
}

// Rows too long for the registers, and rows that no wide access fits (kWidth 1): each pass reads the row again, mostly
// from the caches.
template <typename Traits, int kWidth>
__global__ void __launch_bounds__(kMaxBlock)
    norm_in_passes(const NormArgs<typename Traits::T, typename Traits::W> args) {
  __shared__ alignas(16) float scratch[2][kMaxBlock / kWarp];

  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int hidden = row < args.rows ? args.hidden : 0;
  const RowIndex index(row, args.inner_rows, args.rows);
  wait_for_previous_grid();
  const typename Traits::T* s = Traits::kResidual ? index.of(args.sum) : index.of(args.x);
  const int first = threadIdx.x * kWidth;
  const int step = blockDim.x * kWidth;

  Operands<Traits, kWidth> operands;
  float total = 0.0f;
  for (int column = first; column < hidden; column += step) {
    operands.load_s(args, index, column);
    operands.load_gate(args, index, column);
    operands.add(args, index, column);
    if constexpr (Traits::kCentre == Centre::kMean) {
      operands.accumulate_mean(total);
    } else {
      operands.accumulate_around(0.0f, total);
    }
  }
  row_sum(total, scratch[0]);
  float mean = 0.0f;
  if constexpr (Traits::kCentre == Centre::kMean) {
    mean = total * args.inverse_hidden;
    total = 0.0f;
    for (int column = first; column < hidden; column += step) {
      operands.s.load(s + column);
      operands.accumulate_around(mean, total);
    }
    row_sum(total, scratch[1]);
  }
  const float factor = rsqrtf(total * args.inverse_hidden + args.eps);
  for (int column = first; column < hidden; column += step) {
    operands.s.load(s + column);
    operands.load_rest(args, index, column);
    operands.finish(args, index, column, mean, factor);
  }
}

// ---- host side ----

template <typename Traits>
cudaError_t norm(NormArgs<typename Traits::T, typename Traits::W> args, cudaStream_t stream) {
  constexpr int kWidth = kFullWidth<typename Traits::T>;
  if (args.rows == 0 || args.hidden == 0) return cudaSuccess;
  args.inverse_hidden = static_cast<float>(1.0 / args.hidden);
  const bool wide = args.hidden % kWidth == 0 && fits_wide(args.x) && fits_wide(args.residual) &&
                    fits_wide(args.gate) && fits_wide(args.scale) && fits_wide(args.shift) && fits_wide(args.out) &&
                    fits_wide(args.sum) && fits_wide(args.weight);
  const int64_t slices = wide ? args.hidden / kWidth : args.hidden;
  const auto run = [&](auto kernel, Block block) {
    const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, block.rows_per_block)));
    return launch(kernel, args, grid, dim3(block.threads_per_row, block.rows_per_block), stream);
  };
  const auto run_in_registers = [&](auto spread) {
    using Chosen = decltype(spread);
    const Block block = block_for(slices, Chosen::kSlices, Chosen::kThreads);
    const bool plain = block.threads_per_row >= kWarp &&
                       static_cast<int64_t>(block.threads_per_row) * Chosen::kSlices == slices &&
                       args.rows % block.rows_per_block == 0 &&
                       (Traits::kModulated || args.inner_rows >= args.rows);
    return plain ? run(norm_in_registers<Traits, Chosen, true>, block)
                 : run(norm_in_registers<Traits, Chosen, false>, block);
  };
  if (!wide) {
    const int per_thread = static_cast<int>(ceil_div(slices, kMaxBlock));
    return run(norm_in_passes<Traits, 1>, block_for(slices, per_thread < 4 ? 4 : per_thread, kMaxBlock));
  }
  // Chosen on an H200 from 22 spreads at 16 shapes; the share of the copy's time is that of 8192 rows of 4096 bfloat16.
  // Occupancy decides: 1536 threads a multiprocessor with two slices each keep the memory busy, so a spread may use
  // 40 registers. The persistent form with a prefetched next row is slower (1.07).
  if constexpr (Traits::kModulated && Traits::kResidual) {
    using Heavy = Spread<2, 256, 4, true>;  // 1.01
    if (slices <= Heavy::kMostSlices) return run_in_registers(Heavy{});
  } else if constexpr (Traits::kModulated || Traits::kResidual) {
    // 1.00 with a residual, 1.01 modulated; two slices: 1.02 and 1.03, but sooner done where there are few rows.
    using Many = Spread<4, 128, 8, true>;
    constexpr int64_t kManyRows = 512;
    const bool many = Traits::kModulated || args.rows >= kManyRows;
    if (many && slices >= kWarp * Many::kSlices && slices <= Many::kMostSlices) return run_in_registers(Many{});
  }
  if constexpr (!(Traits::kModulated && Traits::kResidual)) {
    using Short = Spread<2, 512, 3, !Traits::kModulated>;  // 1.00
    if (slices <= Short::kMostSlices) return run_in_registers(Short{});
  }
  using Long = Spread<4, 512, 1, true>;
  if (slices <= Long::kMostSlices) return run_in_registers(Long{});
  return run(norm_in_passes<Traits, kWidth>, {kMaxBlock, 1});
}
}  // namespace rows
