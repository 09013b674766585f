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

// How rows are spread over threads. Registers a thread may use: 65536 over the threads of a multiprocessor.
template <int kSlices_, int kThreads_, int kBlocks_, bool kEarly_, int kRows_ = 1>
struct Spread {
  static constexpr int kSlices = kSlices_;    // a thread's share of a row
  static constexpr int kThreads = kThreads_;  // at most, a block
  static constexpr int kBlocks = kBlocks_;    // at least, a multiprocessor
  static constexpr bool kEarly = kEarly_;     // weight, scale and shift are loaded before the sum, not after it
  static constexpr int kRows = kRows_;        // neighbouring rows a thread, which share weight, scale, shift and gate
  static constexpr int kMostSlices = kSlices * kThreads;
};

// What rows have in common at one column.
template <typename Traits, int kWidth>
struct Common {
  using T = typename Traits::T;
  using Args = NormArgs<T, typename Traits::W>;
  Slice<T, kWidth> gate;
  Slice<T, kWidth> scale, shift;
  Slice<typename Traits::W, kWidth> weight;

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
};

// A row's own slices of one thread at one column.
template <typename Traits, int kWidth>
struct Operands {
  using T = typename Traits::T;
  using Args = NormArgs<T, typename Traits::W>;
  Slice<T, kWidth> s;  // x, then s
  Slice<T, kWidth> residual;

  __device__ void load_s(const Args& args, const RowIndex& index, int column) {
    s.load(index.of(args.x) + column);
    if constexpr (Traits::kResidual) residual.load(index.of(args.residual) + column);
  }

  // s = residual + x * gate, rounded to T as the model that adds first and normalises then has it, and written.
  __device__ void add(const Args& args, const RowIndex& index, int column, Common<Traits, kWidth>& common) {
    if constexpr (Traits::kResidual) {
      float value[kWidth];
      float other[kWidth];
      s.unpack(value);
      if constexpr (Traits::kModulated) {
        common.gate.stay_packed();
        common.gate.unpack(other);
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

  __device__ void finish(const Args& args, const RowIndex& index, int column, float mean, float factor,
                         Common<Traits, kWidth>& common) {
    float value[kWidth];
    float other[kWidth];
    s.stay_packed();
    s.unpack(value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] = (value[j] - mean) * factor;
    if constexpr (Traits::kModulated) {
      common.scale.stay_packed();
      common.scale.unpack(other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] *= 1.0f + other[j];
      common.shift.stay_packed();
      common.shift.unpack(other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] += other[j];
    } else {
      common.weight.stay_packed();
      common.weight.unpack(other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] *= other[j];
    }
    Slice<T, kWidth> out;
    out.pack(value);
    out.store(index.of(args.out) + column);
  }
};

// The row in registers: each operand is read once, its loads before the first use. kPlain: whole warps share a row,
// blockDim.x * kSlices slices are the row, and the blocks cover the rows exactly, kRows at a time, which are of one group
// and have the same modulation; without modulation the rows are also evenly spaced (no groups).
template <typename Traits, typename Spread, bool kPlain>
__global__ void __launch_bounds__(Spread::kThreads, Spread::kBlocks)
    norm_in_registers(const NormArgs<typename Traits::T, typename Traits::W> args) {
  constexpr int kWidth = kFullWidth<typename Traits::T>;
  constexpr int kSlices = Spread::kSlices;
  constexpr int kRows = Spread::kRows;
  static_assert(kPlain || kRows == 1, "where rows lie anyhow, neighbours have nothing in common");
  __shared__ alignas(16) float scratch[2][kRows][kMaxBlock / kWarp];

  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y) * kRows;
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

  Common<Traits, kWidth> common[kSlices];
  Operands<Traits, kWidth> operands[kRows][kSlices];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[r][i].load_s(args, index.next(r), column_of(i));
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (in_row(i)) common[i].load_gate(args, index, column_of(i));
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (Spread::kEarly && in_row(i)) common[i].load_rest(args, index, column_of(i));

#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[r][i].add(args, index.next(r), column_of(i), common[i]);
  float mean[kRows] = {};
  float total[kRows] = {};
  if constexpr (Traits::kCentre == Centre::kNone) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kSlices; ++i)
        if (in_row(i)) operands[r][i].accumulate_around(0.0f, total[r]);
    row_sum(total, scratch[0]);
  } else if constexpr (kPlain) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Moments moments = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < kSlices; ++i) operands[r][i].accumulate_mean(moments.mean);
      moments.mean *= 1.0f / (kSlices * kWidth);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) operands[r][i].accumulate_around(moments.mean, moments.squares);
      moments = row_moments(moments, kSlices * kWidth, scratch[0][r], scratch[1][r]);
      mean[r] = moments.mean;
      total[r] = moments.squares;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[0][i].accumulate_mean(total[0]);
    row_sum(total, scratch[0]);
    mean[0] = total[0] * args.inverse_hidden;
    total[0] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[0][i].accumulate_around(mean[0], total[0]);
    row_sum(total, scratch[1]);
  }
#pragma unroll
  for (int i = 0; i < kSlices; ++i)
    if (!Spread::kEarly && in_row(i)) common[i].load_rest(args, index, column_of(i));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float factor = rsqrtf(total[r] * args.inverse_hidden + args.eps);
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (in_row(i)) operands[r][i].finish(args, index.next(r), column_of(i), mean[r], factor, common[i]);
  }
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

  Common<Traits, kWidth> common;
  Operands<Traits, kWidth> operands;
  float total = 0.0f;
  for (int column = first; column < hidden; column += step) {
    operands.load_s(args, index, column);
    common.load_gate(args, index, column);
    operands.add(args, index, column, common);
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
    common.load_rest(args, index, column);
    operands.finish(args, index, column, mean, factor, common);
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
  const auto run = [&](auto kernel, Block block, int rows_per_thread = 1) {
    const int64_t together = static_cast<int64_t>(block.rows_per_block) * rows_per_thread;
    const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, together)));
    return launch(kernel, args, grid, dim3(block.threads_per_row, block.rows_per_block), stream);
  };
  const auto is_plain = [&](auto spread, Block block) {
    using Chosen = decltype(spread);
    const int64_t together = static_cast<int64_t>(block.rows_per_block) * Chosen::kRows;
    return block.threads_per_row >= kWarp &&
           static_cast<int64_t>(block.threads_per_row) * Chosen::kSlices == slices && args.rows % together == 0 &&
           (args.inner_rows >= args.rows || (Traits::kModulated && args.inner_rows % Chosen::kRows == 0)) &&
           (Chosen::kRows == 1 || (args.scale.inner == 0 && args.shift.inner == 0 && args.gate.inner == 0));
  };
  const auto run_in_registers = [&](auto spread) {
    using Chosen = decltype(spread);
    const Block block = block_for(slices, Chosen::kSlices, Chosen::kThreads);
    return is_plain(spread, block) ? run(norm_in_registers<Traits, Chosen, true>, block)
                                   : run(norm_in_registers<Traits, Chosen, false>, block);
  };
  if (!wide) {
    const int per_thread = static_cast<int>(ceil_div(slices, kMaxBlock));
    return run(norm_in_passes<Traits, 1>, block_for(slices, per_thread < 4 ? 4 : per_thread, kMaxBlock));
  }
  // Chosen on an H200 from 22 spreads at 16 shapes; the share of the copy's time is that of 8192 rows of 4096 bfloat16.
  // Occupancy decides: 1536 threads a multiprocessor with two slices each keep the memory busy, so a spread may use
  // 40 registers. The persistent form with a prefetched next row is slower (1.07).
  using Many = Spread<4, 128, 8, true>;
  const bool fits_many = slices >= kWarp * Many::kSlices && slices <= Many::kMostSlices;
  if constexpr (Traits::kModulated && Traits::kResidual) {
    using Heavy = Spread<2, 256, 4, true>;  // 1.01
    if (slices <= Heavy::kMostSlices) return run_in_registers(Heavy{});
  } else if constexpr (Traits::kModulated) {
    // Scale and shift are half of what a thread loads, so two rows share them: 0.98 at 8192 rows of 2048, and 1.03 with
    // Many, which is the better one for LayerNorm (1.07 in pairs), whose sums take longer than its loads.
    using Pairs = Spread<2, 256, 4, true, 2>;
    using Few = Spread<2, 256, 4, true>;
    constexpr int64_t kManyRows = 2048;
    if (args.rows < kManyRows && slices <= Few::kMostSlices) return run_in_registers(Few{});
    if constexpr (Traits::kCentre == Centre::kNone) {
      const Block block = block_for(slices, Pairs::kSlices, Pairs::kThreads);
      if (slices <= Pairs::kMostSlices && is_plain(Pairs{}, block))
        return run(norm_in_registers<Traits, Pairs, true>, block, Pairs::kRows);
    }
    if (fits_many) return run_in_registers(Many{});
  } else if constexpr (Traits::kResidual) {
    // 1.00; two slices: 1.02, but sooner done where there are few rows.
    constexpr int64_t kManyRows = 512;
    if (args.rows >= kManyRows && fits_many) return run_in_registers(Many{});
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
