// Element-wise ops over rows. An op names its operands, says how to load what one slice needs and how to finish it; the
// kernel hands each thread a slice. Long rows are cut into parts of a block each, which grid.y and grid.z count: a loop
// would keep the addresses in registers that threads of a full multiprocessor do not have.
#include "../rms_norm/rows.cuh"
#include "ltx_ops.h"

namespace ltx_ops {
namespace {

using rows::RowIndex;
using rows::Rows;
using rows::Slice;

constexpr int kThreads = 512;

template <typename Op>
__global__ void __launch_bounds__(kThreads, Op::kBlocks) map_rows(const Op op) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= op.rows) return;
  const uint32_t part = blockIdx.z * gridDim.y + blockIdx.y;
  const uint32_t column = (part * blockDim.x + threadIdx.x) * Op::kWidth;
  if (column >= op.hidden) return;
  const RowIndex index = Op::kOneGroup ? RowIndex(row) : RowIndex(row, op.inner_rows, op.rows);
  const typename Op::Place place(op, row, column);
  rows::wait_for_previous_grid();
  typename Op::Registers registers;
  op.load(registers, index, place, column);
  op.finish(registers, index, column);
}

template <typename Op>
cudaError_t run(const Op& op, cudaStream_t stream) {
  if (op.rows == 0 || op.hidden == 0) return cudaSuccess;
  constexpr int64_t kMostY = 65535;
  const int64_t slices = rows::ceil_div(op.hidden, Op::kWidth);
  const rows::Block block = rows::block_for(slices < kThreads ? slices : kThreads, 1, kThreads);
  const int64_t parts = rows::ceil_div(slices, block.threads_per_row);
  const int64_t planes = rows::ceil_div(parts, kMostY);
  const dim3 grid(static_cast<unsigned>(rows::ceil_div(op.rows, block.rows_per_block)),
                  static_cast<unsigned>(rows::ceil_div(parts, planes)), static_cast<unsigned>(planes));
  return rows::launch(map_rows<Op>, op, grid, dim3(block.threads_per_row, block.rows_per_block), stream);
}

template <typename T>
Rows<T> as(const RowsOf& of) {
  return {static_cast<T*>(of.data), of.outer, of.inner};
}

// What every op has. kWidth: the channels of a slice; kBlocks: at least, a multiprocessor (4 leave 32 registers a
// thread, 3 leave 40, 2 leave 64); kOneGroup: `rows` are those of one group.
template <int kWidth_, int kBlocks_ = 3, bool kOneGroup_ = false>
struct Extent {
  static constexpr int kWidth = kWidth_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kOneGroup = kOneGroup_;
  // What an op derives from the row and the column alone, once.
  struct Place {
    __device__ Place(const Extent&, int64_t, uint32_t) {}
  };
  int64_t rows;
  int64_t inner_rows;
  uint32_t hidden;

  template <typename From>
  explicit Extent(const From& op) : rows(op.rows), inner_rows(op.inner_rows), hidden(op.hidden) {}
};

template <typename T, int W>
struct GatedAddOp : Extent<W> {
  using Place = typename Extent<W>::Place;
  struct Registers {
    Slice<T, W> x, residual, gate;
  };
  Rows<const T> x, residual, gate;
  Rows<T> out;

  explicit GatedAddOp(const GatedAdd& op)
      : Extent<W>(op), x(as<const T>(op.x)), residual(as<const T>(op.residual)), gate(as<const T>(op.gate)),
        out(as<T>(op.out)) {}
  bool fits() const {
    return this->hidden % W == 0 && fits_wide(x) && fits_wide(residual) && fits_wide(gate) && fits_wide(out);
  }
  __device__ void load(Registers& r, const RowIndex& index, const Place&, int column) const {
    r.x.load(index.of(x) + column);
    r.residual.load(index.of(residual) + column);
    r.gate.load(index.of(gate) + column);
  }
  __device__ void finish(Registers& r, const RowIndex& index, int column) const {
    float value[W];
    float gates[W];
    float other[W];
    r.x.unpack(value);
    r.gate.unpack(gates);
    r.residual.unpack(other);
#pragma unroll
    for (int j = 0; j < W; ++j) value[j] = value[j] * gates[j] + other[j];
    r.x.pack(value);
    r.x.store(index.of(out) + column);
  }
};

// `N` elements: one wide slice, or N single ones where rows lie badly.
template <typename T, int N, bool kWide>
struct Run {
  Slice<T, kWide ? N : 1> part[kWide ? 1 : N];

  __device__ void load(const T* source) {
#pragma unroll
    for (int i = 0; i < (kWide ? 1 : N); ++i) part[i].load(source + i);
  }
  __device__ void store(T* target) const {
#pragma unroll
    for (int i = 0; i < (kWide ? 1 : N); ++i) part[i].store(target + i);
  }
  __device__ void unpack(float (&to)[N]) const {
    if constexpr (kWide) {
      part[0].unpack(to);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float one[1];
        part[i].unpack(one);
        to[i] = one[0];
      }
    }
  }
  __device__ void pack(const float (&from)[N]) {
    if constexpr (kWide) {
      part[0].pack(from);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float one[1] = {from[i]};
        part[i].pack(one);
      }
    }
  }
};

template <typename T, bool kWide>
constexpr int kPairWidth = kWide ? rows::kFullWidth<T> : 2;

template <int W>
__device__ void turn(float (&value)[W], const float (&c)[W], const float (&s)[W]) {
#pragma unroll
  for (int j = 0; j < W; j += 2) {
    const float a = value[j];
    const float b = value[j + 1];
    value[j] = a * c[j] - b * s[j];
    value[j + 1] = b * c[j + 1] + a * s[j + 1];
  }
}

// Where all groups (the batch) share their angles, a thread keeps them in registers and turns its slice of each group:
// `rows` are then those of one group.
template <typename T, typename A, bool kWide>
struct RotaryOp : Extent<kPairWidth<T, kWide>, 2> {
  static constexpr int W = kPairWidth<T, kWide>;
  using Place = typename Extent<W, 2>::Place;
  struct Registers {
    Run<T, W, kWide> x;
    Run<A, W, kWide> cos, sin;
  };
  Rows<const T> x;
  Rows<const A> cos, sin;
  Rows<T> out;
  int64_t sharing = 1;

  explicit RotaryOp(const Rotary& op)
      : Extent<W, 2>(op), x(as<const T>(op.x)), cos(as<const A>(op.cos)), sin(as<const A>(op.sin)),
        out(as<T>(op.out)) {
    if (op.inner_rows < op.rows && cos.outer == 0 && sin.outer == 0) {
      sharing = op.rows / op.inner_rows;
      this->rows = op.inner_rows;
    }
  }
  bool fits() const {
    return this->hidden % W == 0 && fits_wide(x) && fits_wide(cos) && fits_wide(sin) && fits_wide(out);
  }
  __device__ void load(Registers& r, const RowIndex& index, const Place&, int column) const {
    r.x.load(index.of(x) + column);
    r.cos.load(index.of(cos) + column);
    r.sin.load(index.of(sin) + column);
  }
  __device__ void finish(Registers& r, const RowIndex& index, int column) const {
    const T* source = index.of(x) + column;
    T* target = index.of(out) + column;
    for (int64_t left = sharing;;) {
      float value[W];
      float c[W];
      float s[W];
      r.x.unpack(value);
      r.cos.unpack(c);
      r.sin.unpack(s);
      const bool last = --left == 0;
      source += x.outer;
      if (!last) r.x.load(source);
      turn(value, c, s);
      Run<T, W, kWide> result;
      result.pack(value);
      result.store(target);
      if (last) return;
      target += out.outer;
    }
  }
};

// n / divisor for n < 2^31, in a multiplication instead of some twenty instructions (Granlund and Montgomery: the
// multiplier is 2^(32 + shift) / divisor rounded up, and has 32 bits).
struct Divider {
  uint32_t divisor;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  explicit Divider(uint32_t by) : divisor(by) {
    if (by == 1) return;
    uint32_t bits = 1;
    while (bits < 31 && (1u << bits) < by) ++bits;
    shift = bits - 1;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + bits)) + by - 1) / by);
  }
  __device__ uint32_t operator()(uint32_t n) const {
    return divisor == 1 ? n : __umulhi(n, multiplier) >> shift;
  }
};

// Batch entries share their places, so a thread turns its slice of each by the angles that it looked up once.
// The look-ups keep the schedulers and the L1 busy, so what helps is fewer instructions (offsets of 32 bits, divisions by
// multiplication, all that the place decides before the wait) and more threads (32 registers).
template <typename T, bool kWide>
struct Rotary3dOp : Extent<kPairWidth<T, kWide>, 4, true> {
  static constexpr int W = kPairWidth<T, kWide>;
  struct Registers {
    Run<T, W, kWide> x;
    float2 turn[W / 2];
  };
  Rows<const T> x;
  Rows<T> out;
  const float2* table;
  uint32_t frames;
  Divider height, width;
  int untouched_pairs;
  int angles;
  int sharing;

  explicit Rotary3dOp(const Rotary3d& op)
      : Extent<W, 4, true>(op), x(as<const T>(op.x)), out(as<T>(op.out)),
        table(reinterpret_cast<const float2*>(op.table)), frames(op.frames), height(op.height), width(op.width),
        untouched_pairs(op.hidden % 6 / 2), angles(op.hidden / 6), sharing(static_cast<int>(op.rows / op.inner_rows)) {
    this->rows = op.inner_rows;
  }
  bool fits() const { return this->hidden % W == 0 && fits_wide(x) && fits_wide(out); }

  // Where the table has the angles of a token's frame, row and column, and which of them the first pair takes.
  struct Place {
    uint32_t angles[3];
    int pair;
    int entry;
    int axis;

    __device__ Place(const Rotary3dOp& op, int64_t row, uint32_t column) {
      const uint32_t token = static_cast<uint32_t>(row);
      const uint32_t plane = op.width(token);
      const uint32_t frame = op.height(plane);
      angles[0] = frame * op.angles;
      angles[1] = (op.frames + plane - frame * op.height.divisor) * op.angles;
      angles[2] = (op.frames + op.height.divisor + token - plane * op.width.divisor) * op.angles;
      pair = static_cast<int>(column / 2) - op.untouched_pairs;
      entry = (pair + 3) / 3 - 1;  // pair / 3 rounded down, for pair >= -3
      axis = pair - 3 * entry;
    }
  };
  __device__ void load(Registers& r, const RowIndex& index, const Place& place, int column) const {
    r.x.load(index.of(x) + column);
    int entry = place.entry;
    int axis = place.axis;
#pragma unroll
    for (int i = 0; i < W / 2; ++i) {
      const uint32_t first = axis == 0 ? place.angles[0] : axis == 1 ? place.angles[1] : place.angles[2];
      r.turn[i] = place.pair + i < 0 ? make_float2(1.0f, 0.0f) : table[first + entry];
      if (++axis == 3) {
        axis = 0;
        ++entry;
      }
    }
  }
  __device__ void finish(Registers& r, const RowIndex& index, int column) const {
    const T* source = index.of(x) + column;
    T* target = index.of(out) + column;
    for (int left = sharing;;) {
      float value[W];
      r.x.unpack(value);
#pragma unroll
      for (int i = 0; i < W / 2; ++i) {
        const float a = value[2 * i];
        const float b = value[2 * i + 1];
        value[2 * i] = a * r.turn[i].x - b * r.turn[i].y;
        value[2 * i + 1] = b * r.turn[i].x + a * r.turn[i].y;
      }
      r.x.pack(value);
      r.x.store(target);
      if (--left == 0) return;
      source += x.outer;
      target += out.outer;
      r.x.load(source);
    }
  }
};

__device__ inline float gelu_tanh(float x, float) {
  constexpr float kScale = 0.7978845608028654f;  // sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  return 0.5f * x * (1.0f + tanhf(kScale * (x + kCubic * x * x * x)));
}

// x / (1 + 2^power) in four instructions: __fdividef and __expf each add three that scale extremes, which need none
// here, since 2^power is 0 or infinite where they would matter.
__device__ inline float over_one_plus_power(float x, float power) {
  float raised;
  float share;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(raised) : "f"(power));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + raised));
  return x * share;
}

constexpr float kLog2E = 1.4426950408889634f;

// The same to float16's rounding: 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)).
template <typename T>
__device__ float gelu_tanh(float x, T) {
  constexpr float kScale = -2.0f * 0.7978845608028654f * kLog2E;
  constexpr float kCubic = 0.044715f;
  return over_one_plus_power(x, x * (kScale + kScale * kCubic * x * x));
}

__device__ inline float gelu_erf(float x, float) { return x * normcdff(x); }

// The same to float16's rounding: Phi(x) = 1 / (1 + 2^(-x P(x^2))), P the minimax polynomial for |x| <= 5, which keeps
// gelu to 8e-5 of itself for |x| < 4 and to 4e-7 below. Beyond 5 the odds grow as they do there.
template <typename T>
__device__ float gelu_erf(float x, T) {
  const float square = fminf(x * x, 25.0f);
  float p = 2.1221991e-09f;
  p = p * square - 1.9593786e-07f;
  p = p * square + 7.0799033e-06f;
  p = p * square - 1.1156475e-04f;
  p = p * square - 3.4705477e-04f;
  p = p * square + 1.0540055e-01f;
  p = p * square + 2.3018501e+00f;
  return over_one_plus_power(x, -x * p);
}

// A short gelu: a small grid is on the multiprocessors all at once, so that its loads do not hide its arithmetic. GPU
// time over a copy's on an H200 at 1x1024x4096 is 0.87; with a longer gelu (erfc after Abramowitz and Stegun) 0.93;
// with two slices a thread 1.06, and 0.91 with two and no gelu at all.
template <typename T, bool kTanh, int W>
struct GegluOp : Extent<W> {
  using Place = typename Extent<W>::Place;
  struct Registers {
    Slice<T, W> value, gate;
  };
  Rows<const T> x;
  Rows<T> out;

  explicit GegluOp(const Geglu& op) : Extent<W>(op), x(as<const T>(op.x)), out(as<T>(op.out)) {}
  bool fits() const { return this->hidden % W == 0 && fits_wide(x) && fits_wide(out); }
  __device__ void load(Registers& r, const RowIndex& index, const Place&, int column) const {
    r.gate.load(index.of(x) + this->hidden + column);
    r.value.load(index.of(x) + column);
  }
  __device__ void finish(Registers& r, const RowIndex& index, int column) const {
    float value[W];
    float gate[W];
    r.value.unpack(value);
    r.gate.unpack(gate);
#pragma unroll
    for (int j = 0; j < W; ++j) value[j] *= kTanh ? gelu_tanh(gate[j], T()) : gelu_erf(gate[j], T());
    r.value.pack(value);
    r.value.store(index.of(out) + column);
  }
};

template <typename T>
cudaError_t typed(const GatedAdd& op, cudaStream_t stream) {
  const GatedAddOp<T, rows::kFullWidth<T>> wide(op);
  return wide.fits() ? run(wide, stream) : run(GatedAddOp<T, 1>(op), stream);
}

template <typename T, typename A>
cudaError_t with_angles(const Rotary& op, cudaStream_t stream) {
  const RotaryOp<T, A, true> wide(op);
  return wide.fits() ? run(wide, stream) : run(RotaryOp<T, A, false>(op), stream);
}

template <typename T>
cudaError_t typed(const Rotary& op, cudaStream_t stream) {
  return op.angle_type == op.type ? with_angles<T, T>(op, stream) : with_angles<T, float>(op, stream);
}

template <typename T>
cudaError_t typed(const Rotary3d& op, cudaStream_t stream) {
  const Rotary3dOp<T, true> wide(op);
  return wide.fits() ? run(wide, stream) : run(Rotary3dOp<T, false>(op), stream);
}

template <typename T, bool kTanh>
cudaError_t with_tanh(const Geglu& op, cudaStream_t stream) {
  const GegluOp<T, kTanh, rows::kFullWidth<T>> wide(op);
  return wide.fits() ? run(wide, stream) : run(GegluOp<T, kTanh, 1>(op), stream);
}

template <typename T>
cudaError_t typed(const Geglu& op, cudaStream_t stream) {
  return op.tanh ? with_tanh<T, true>(op, stream) : with_tanh<T, false>(op, stream);
}

template <typename Op>
cudaError_t dispatch(const Op& op, cudaStream_t stream) {
  switch (op.type) {
    case Scalar::kFloat:
      return typed<float>(op, stream);
    case Scalar::kHalf:
      return typed<__half>(op, stream);
    case Scalar::kBFloat16:
      return typed<__nv_bfloat16>(op, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t gated_add(const GatedAdd& op, cudaStream_t stream) { return dispatch(op, stream); }
cudaError_t rotary(const Rotary& op, cudaStream_t stream) { return dispatch(op, stream); }
cudaError_t rotary_3d(const Rotary3d& op, cudaStream_t stream) { return dispatch(op, stream); }
cudaError_t geglu(const Geglu& op, cudaStream_t stream) { return dispatch(op, stream); }

}  // namespace ltx_ops
