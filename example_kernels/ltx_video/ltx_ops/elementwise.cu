// Element-wise ops over rows. An op names its operands, says how to load what one slice needs and how to finish it; the
// kernel walks the rows.
#include "../rms_norm/rows.cuh"
#include "ltx_ops.h"

namespace ltx_ops {
namespace {

using rows::RowIndex;
using rows::Rows;
using rows::Slice;

constexpr int kThreads = 512;
constexpr int kSlicesInFlight = 2;
constexpr int kMinThreads = 128;

template <typename Op>
__global__ void __launch_bounds__(kThreads) map_rows(const Op op) {
  rows::wait_for_previous_grid();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= op.rows) return;
  const RowIndex index(row, op.inner_rows, op.rows);
  const int step = blockDim.x * Op::kWidth;
  for (int first = threadIdx.x * Op::kWidth; first < op.hidden; first += kSlicesInFlight * step) {
    typename Op::Registers registers[kSlicesInFlight];
#pragma unroll
    for (int i = 0; i < kSlicesInFlight; ++i)
      if (first + i * step < op.hidden) op.load(registers[i], index, first + i * step);
#pragma unroll
    for (int i = 0; i < kSlicesInFlight; ++i)
      if (first + i * step < op.hidden) op.finish(registers[i], index, first + i * step);
  }
}

template <typename Op>
cudaError_t run(const Op& op, cudaStream_t stream) {
  if (op.rows == 0 || op.hidden == 0) return cudaSuccess;
  const int64_t slices = rows::ceil_div(op.hidden, Op::kWidth);
  const int per_thread = slices > kThreads * kSlicesInFlight
                             ? static_cast<int>(rows::ceil_div(slices, kThreads))
                             : kSlicesInFlight;
  const rows::Block block = rows::block_for(slices, per_thread, kMinThreads);
  const dim3 grid(static_cast<unsigned>(rows::ceil_div(op.rows, block.rows_per_block)));
  return rows::launch(map_rows<Op>, op, grid, dim3(block.threads_per_row, block.rows_per_block), stream);
}

template <typename T>
Rows<T> as(const RowsOf& of) {
  return {static_cast<T*>(of.data), of.outer, of.inner};
}

// What every op has. kWidth: the channels that a thread takes at once.
template <int kWidth_>
struct Extent {
  static constexpr int kWidth = kWidth_;
  int64_t rows;
  int64_t inner_rows;
  int hidden;

  template <typename From>
  explicit Extent(const From& op) : rows(op.rows), inner_rows(op.inner_rows), hidden(op.hidden) {}
};

template <typename T, int W>
struct GatedAddOp : Extent<W> {
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
  __device__ void load(Registers& r, const RowIndex& index, int column) const {
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

template <typename T, typename A, bool kWide>
struct RotaryOp : Extent<kPairWidth<T, kWide>> {
  static constexpr int W = kPairWidth<T, kWide>;
  struct Registers {
    Run<T, W, kWide> x;
    Run<A, W, kWide> cos, sin;
  };
  Rows<const T> x;
  Rows<const A> cos, sin;
  Rows<T> out;

  explicit RotaryOp(const Rotary& op)
      : Extent<W>(op), x(as<const T>(op.x)), cos(as<const A>(op.cos)), sin(as<const A>(op.sin)), out(as<T>(op.out)) {}
  bool fits() const {
    return this->hidden % W == 0 && fits_wide(x) && fits_wide(cos) && fits_wide(sin) && fits_wide(out);
  }
  __device__ void load(Registers& r, const RowIndex& index, int column) const {
    r.x.load(index.of(x) + column);
    r.cos.load(index.of(cos) + column);
    r.sin.load(index.of(sin) + column);
  }
  __device__ void finish(Registers& r, const RowIndex& index, int column) const {
    float value[W];
    float c[W];
    float s[W];
    r.x.unpack(value);
    r.cos.unpack(c);
    r.sin.unpack(s);
#pragma unroll
    for (int j = 0; j < W; j += 2) {
      const float a = value[j];
      const float b = value[j + 1];
      value[j] = a * c[j] - b * s[j];
      value[j + 1] = b * c[j + 1] + a * s[j + 1];
    }
    r.x.pack(value);
    r.x.store(index.of(out) + column);
  }
};

template <typename T, bool kWide>
struct Rotary3dOp : Extent<kPairWidth<T, kWide>> {
  static constexpr int W = kPairWidth<T, kWide>;
  struct Registers {
    Run<T, W, kWide> x;
    float2 turn[W / 2];
  };
  Rows<const T> x;
  Rows<T> out;
  const float2* table;
  int frames, height, width;
  int untouched_pairs;
  int angles;

  explicit Rotary3dOp(const Rotary3d& op)
      : Extent<W>(op), x(as<const T>(op.x)), out(as<T>(op.out)), table(reinterpret_cast<const float2*>(op.table)),
        frames(op.frames), height(op.height), width(op.width), untouched_pairs(op.hidden % 6 / 2),
        angles(op.hidden / 6) {}
  bool fits() const { return this->hidden % W == 0 && fits_wide(x) && fits_wide(out); }
  __device__ void load(Registers& r, const RowIndex& index, int column) const {
    r.x.load(index.of(x) + column);
    const auto token = static_cast<uint32_t>(index.member % (frames * height * width));
    const uint32_t plane = token / static_cast<uint32_t>(width);
    // The rows of the table, by q % 3.
    const int place[3] = {static_cast<int>(plane / static_cast<uint32_t>(height)),
                          frames + static_cast<int>(plane % static_cast<uint32_t>(height)),
                          frames + height + static_cast<int>(token % static_cast<uint32_t>(width))};
#pragma unroll
    for (int i = 0; i < W / 2; ++i) {
      const int q = column / 2 + i - untouched_pairs;
      const int axis = q % 3;
      const int row = axis == 0 ? place[0] : axis == 1 ? place[1] : place[2];
      r.turn[i] = q < 0 ? make_float2(1.0f, 0.0f) : table[row * angles + q / 3];
    }
  }
  __device__ void finish(Registers& r, const RowIndex& index, int column) const {
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
    r.x.store(index.of(out) + column);
  }
};

__device__ inline float gelu_tanh(float x, float) {
  constexpr float kScale = 0.7978845608028654f;  // sqrt(2 / pi)
  constexpr float kCubic = 0.044715f;
  return 0.5f * x * (1.0f + tanhf(kScale * (x + kCubic * x * x * x)));
}

// The same to float16's rounding: 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)).
template <typename T>
__device__ float gelu_tanh(float x, T) {
  constexpr float kScale = 0.7978845608028654f;
  constexpr float kCubic = 0.044715f;
  return __fdividef(x, 1.0f + __expf(-2.0f * kScale * (x + kCubic * x * x * x)));
}

__device__ inline float gelu_erf(float x, float) { return x * normcdff(x); }

// The same to float16's rounding: erfc(z) = t (a1 + t (a2 + …)) exp(-z^2), t = 1 / (1 + p z), z >= 0, absolute error
// 1.5e-7 (Abramowitz and Stegun 7.1.26); the complement keeps its digits where gelu is close to zero.
template <typename T>
__device__ float gelu_erf(float x, T) {
  constexpr float kHalfRoot = 0.7071067811865476f;
  const float z = fabsf(x) * kHalfRoot;
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  float tail = 1.061405429f;
  tail = tail * t - 1.453152027f;
  tail = tail * t + 1.421413741f;
  tail = tail * t - 0.284496736f;
  tail = tail * t + 0.254829592f;
  tail = 0.5f * fabsf(x) * tail * t * __expf(-z * z);
  return x > 0.0f ? x - tail : -tail;
}

template <typename T, bool kTanh, int W>
struct GegluOp : Extent<W> {
  struct Registers {
    Slice<T, W> value, gate;
  };
  Rows<const T> x;
  Rows<T> out;

  explicit GegluOp(const Geglu& op) : Extent<W>(op), x(as<const T>(op.x)), out(as<T>(op.out)) {}
  bool fits() const { return this->hidden % W == 0 && fits_wide(x) && fits_wide(out); }
  __device__ void load(Registers& r, const RowIndex& index, int column) const {
    r.value.load(index.of(x) + column);
    r.gate.load(index.of(x) + this->hidden + column);
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
