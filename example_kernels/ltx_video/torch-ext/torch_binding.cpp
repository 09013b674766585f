// The ops of ltx-video.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "../ltx_ops/ltx_ops.h"
#include "../rms_norm/folding.h"
#include "../rms_norm/rms_norm.h"
#include "registration.h"

namespace {

using at::Tensor;
using row_ops::Grouping;
using row_ops::RowsOf;
using row_ops::Scalar;
using OptionalTensor = std::optional<Tensor>;

bool take(Grouping& grouping, const Tensor& tensor, RowsOf* into) {
  return grouping.take(tensor.data_ptr(), {tensor.dim(), tensor.sizes().data(), tensor.strides().data()}, into);
}

// Where the strides do not fit, a contiguous copy takes the place of the tensor.
void take_input(Grouping& grouping, Tensor& tensor, RowsOf* into) {
  if (take(grouping, tensor, into)) return;
  tensor = tensor.contiguous();
  TORCH_CHECK(take(grouping, tensor, into), "a contiguous tensor always folds to rows");
}

void take_output(Grouping& grouping, const Tensor& tensor, RowsOf* into, const char* name) {
  TORCH_CHECK(take(grouping, tensor, into), name, ": unsupported strides; pass a contiguous tensor");
}

Scalar scalar_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Scalar::kFloat;
    case at::kHalf:
      return Scalar::kHalf;
    case at::kBFloat16:
      return Scalar::kBFloat16;
    default:
      TORCH_CHECK(false, name, " must be float32, float16 or bfloat16, got ", tensor.scalar_type());
  }
}

void check_input(const Tensor& x) {
  constexpr int64_t kLimit = INT32_MAX;
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  TORCH_CHECK(x.dim() >= 1, "x must have at least one dimension");
  TORCH_CHECK(x.size(-1) <= kLimit, "the last dimension of x must be at most ", kLimit, ", got ", x.size(-1));
}

void check_like(const Tensor& tensor, const Tensor& x, const char* name) {
  TORCH_CHECK(tensor.sizes() == x.sizes(), name, " must have the shape of x, ", x.sizes(), ", got ", tensor.sizes());
  TORCH_CHECK(tensor.scalar_type() == x.scalar_type(), name, " must have the dtype of x, ", x.scalar_type(), ", got ",
              tensor.scalar_type());
  TORCH_CHECK(tensor.device() == x.device(), name, " must be on ", x.device(), ", got ", tensor.device());
}

// An operand that broadcasts to x along the leading dimensions.
void take_broadcast(Grouping& grouping, const Tensor& tensor, const Tensor& x, RowsOf* into, const char* name) {
  constexpr int64_t kMostDims = 16;
  const int64_t dims = x.dim();
  TORCH_CHECK(dims <= kMostDims, "x may have at most ", kMostDims, " dimensions");
  TORCH_CHECK(tensor.dim() == dims && tensor.size(-1) == x.size(-1), name, " must have ", dims,
              " dimensions and the last one of x, ", x.size(-1), ", got ", tensor.sizes());
  TORCH_CHECK(tensor.device() == x.device(), name, " must be on ", x.device(), ", got ", tensor.device());
  int64_t strides[kMostDims];
  for (int64_t d = 0; d < dims; ++d) {
    TORCH_CHECK(tensor.size(d) == x.size(d) || tensor.size(d) == 1, name, " must broadcast to ", x.sizes(), ", got ",
                tensor.sizes());
    strides[d] = tensor.size(d) == x.size(d) ? tensor.stride(d) : 0;
  }
  TORCH_CHECK(grouping.take(tensor.data_ptr(), {dims, x.sizes().data(), strides}, into), name,
              ": unsupported strides; pass a contiguous tensor");
}

void take_modulation(Grouping& grouping, const Tensor& tensor, const Tensor& x, RowsOf* into, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == x.scalar_type(), name, " must have the dtype of x, ", x.scalar_type(), ", got ",
              tensor.scalar_type());
  take_broadcast(grouping, tensor, x, into, name);
}

Tensor empty_contiguous(const Tensor& like) { return at::empty(like.sizes(), like.options()); }

template <typename Op>
void set_extent(Op& op, const Tensor& x) {
  op.hidden = static_cast<int>(x.size(-1));
  op.rows = x.numel() / x.size(-1);
}

template <typename Op>
void launch(Op& op, cudaError_t (*function)(const Op&, cudaStream_t), const Grouping& grouping, const Tensor& x) {
  op.inner_rows = grouping.settle();
  const c10::cuda::CUDAGuard guard(x.device());
  C10_CUDA_CHECK(function(op, c10::cuda::getCurrentCUDAStream().stream()));
}

// ---- RMSNorm ----

template <typename Op>
void set_weight(Op& op, OptionalTensor& weight, const Tensor& x) {
  op.type = scalar_of(x, "x");
  op.weight_type = op.type;
  if (!weight.has_value()) return;
  TORCH_CHECK(weight->dim() == 1 && weight->size(0) == x.size(-1), "weight must have shape [", x.size(-1), "], got ",
              weight->sizes());
  op.weight_type = scalar_of(*weight, "weight");
  TORCH_CHECK(op.weight_type == op.type || op.weight_type == Scalar::kFloat,
              "weight must be float32 or have the dtype of x, got ", weight->scalar_type());
  TORCH_CHECK(weight->device() == x.device(), "weight must be on ", x.device(), ", got ", weight->device());
  weight = weight->contiguous();
  op.weight = weight->data_ptr();
}

void run_rms_norm(const Tensor& out, Tensor x, OptionalTensor weight, double eps) {
  row_ops::RmsNorm op = {};
  check_input(x);
  set_weight(op, weight, x);
  if (x.numel() == 0) return;
  set_extent(op, x);
  op.eps = static_cast<float>(eps);
  Grouping grouping(op.rows);
  take_output(grouping, out, &op.out, "out");
  take_input(grouping, x, &op.x);
  launch(op, row_ops::rms_norm, grouping, x);
}

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, double eps) {
  Tensor out = empty_contiguous(x);
  run_rms_norm(out, x, weight, eps);
  return out;
}

void rms_norm_out(Tensor& out, const Tensor& x, const OptionalTensor& weight, double eps) {
  check_like(out, x, "out");
  run_rms_norm(out, x, weight, eps);
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_, const Tensor& x_, const OptionalTensor& weight_,
                                             double eps) {
  Tensor grad = grad_;
  Tensor x = x_;
  OptionalTensor weight = weight_;
  row_ops::RmsNormBackward op = {};
  check_input(x);
  check_like(grad, x, "grad");
  set_weight(op, weight, x);
  const c10::cuda::CUDAGuard guard(x.device());
  Tensor grad_x = empty_contiguous(x);
  Tensor grad_weight = weight.has_value() ? at::zeros({x.size(-1)}, weight->options()) : at::empty({0}, x.options());
  if (x.numel() == 0) return {grad_x, grad_weight};
  set_extent(op, x);
  op.eps = static_cast<float>(eps);
  C10_CUDA_CHECK(row_ops::rms_norm_backward_parts(op.rows, &op.parts));
  Tensor parts;
  if (weight.has_value()) {
    parts = at::empty({op.parts, x.size(-1)}, x.options().dtype(at::kFloat));
    op.grad_weight_parts = parts.data_ptr<float>();
    op.grad_weight = grad_weight.data_ptr();
  }
  Grouping grouping(op.rows);
  take_output(grouping, grad_x, &op.grad_x, "grad_x");
  take_input(grouping, grad, &op.grad);
  take_input(grouping, x, &op.x);
  launch(op, row_ops::rms_norm_backward, grouping, x);
  return {grad_x, grad_weight};
}

// ---- AdaLN ----

void run_ada_norm(const Tensor& out, Tensor x, const Tensor& scale, const Tensor& shift, double eps, bool centre,
                  const Tensor* sum = nullptr, OptionalTensor residual = std::nullopt,
                  const OptionalTensor& gate = std::nullopt) {
  ltx_ops::AdaNorm op = {};
  check_input(x);
  op.type = scalar_of(x, "x");
  op.centre = centre;
  op.eps = static_cast<float>(eps);
  if (x.numel() == 0) return;
  set_extent(op, x);
  Grouping grouping(op.rows);
  take_modulation(grouping, scale, x, &op.scale, "scale");
  take_modulation(grouping, shift, x, &op.shift, "shift");
  if (gate.has_value()) take_modulation(grouping, *gate, x, &op.gate, "gate");
  take_output(grouping, out, &op.out, "out");
  if (sum != nullptr) {
    take_output(grouping, *sum, &op.sum, "residual_out");
    take_input(grouping, *residual, &op.residual);
  }
  take_input(grouping, x, &op.x);
  launch(op, ltx_ops::ada_norm, grouping, x);
}

Tensor ada_norm(const Tensor& x, const Tensor& scale, const Tensor& shift, double eps, bool centre) {
  Tensor out = empty_contiguous(x);
  run_ada_norm(out, x, scale, shift, eps, centre);
  return out;
}

void ada_norm_out(Tensor& out, const Tensor& x, const Tensor& scale, const Tensor& shift, double eps, bool centre) {
  check_like(out, x, "out");
  run_ada_norm(out, x, scale, shift, eps, centre);
}

std::tuple<Tensor, Tensor> add_ada_norm(const Tensor& x, const Tensor& residual, const OptionalTensor& gate,
                                        const Tensor& scale, const Tensor& shift, double eps, bool centre) {
  check_like(residual, x, "residual");
  Tensor out = empty_contiguous(x);
  Tensor sum = empty_contiguous(x);
  run_ada_norm(out, x, scale, shift, eps, centre, &sum, residual, gate);
  return {out, sum};
}

void add_ada_norm_out(Tensor& out, Tensor& residual_out, const Tensor& x, const Tensor& residual,
                      const OptionalTensor& gate, const Tensor& scale, const Tensor& shift, double eps, bool centre) {
  check_like(residual, x, "residual");
  check_like(out, x, "out");
  check_like(residual_out, x, "residual_out");
  run_ada_norm(out, x, scale, shift, eps, centre, &residual_out, residual, gate);
}

void run_gated_add(const Tensor& out, Tensor x, Tensor residual, const Tensor& gate) {
  ltx_ops::GatedAdd op = {};
  check_input(x);
  check_like(residual, x, "residual");
  op.type = scalar_of(x, "x");
  if (x.numel() == 0) return;
  set_extent(op, x);
  Grouping grouping(op.rows);
  take_modulation(grouping, gate, x, &op.gate, "gate");
  take_output(grouping, out, &op.out, "out");
  take_input(grouping, residual, &op.residual);
  take_input(grouping, x, &op.x);
  launch(op, ltx_ops::gated_add, grouping, x);
}

Tensor gated_add(const Tensor& x, const Tensor& residual, const Tensor& gate) {
  Tensor out = empty_contiguous(x);
  run_gated_add(out, x, residual, gate);
  return out;
}

void gated_add_out(Tensor& out, const Tensor& x, const Tensor& residual, const Tensor& gate) {
  check_like(out, x, "out");
  run_gated_add(out, x, residual, gate);
}

// ---- RoPE ----

void run_rotary(const Tensor& out, Tensor x, const Tensor& cos, const Tensor& sin) {
  ltx_ops::Rotary op = {};
  check_input(x);
  op.type = scalar_of(x, "x");
  op.angle_type = scalar_of(cos, "cos");
  TORCH_CHECK(x.size(-1) % 2 == 0, "the last dimension of x must be even, got ", x.size(-1));
  TORCH_CHECK(cos.scalar_type() == sin.scalar_type(), "cos and sin must have the same dtype, got ", cos.scalar_type(),
              " and ", sin.scalar_type());
  TORCH_CHECK(op.angle_type == op.type || op.angle_type == Scalar::kFloat,
              "cos and sin must be float32 or have the dtype of x, got ", cos.scalar_type());
  if (x.numel() == 0) return;
  set_extent(op, x);
  Grouping grouping(op.rows);
  take_broadcast(grouping, cos, x, &op.cos, "cos");
  take_broadcast(grouping, sin, x, &op.sin, "sin");
  take_output(grouping, out, &op.out, "out");
  take_input(grouping, x, &op.x);
  launch(op, ltx_ops::rotary, grouping, x);
}

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  Tensor out = empty_contiguous(x);
  run_rotary(out, x, cos, sin);
  return out;
}

void rotary_out(Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_like(out, x, "out");
  run_rotary(out, x, cos, sin);
}

void run_rotary_3d(const Tensor& out, Tensor x, const Tensor& table_, int64_t frames, int64_t height, int64_t width) {
  ltx_ops::Rotary3d op = {};
  check_input(x);
  op.type = scalar_of(x, "x");
  TORCH_CHECK(x.dim() >= 2 && x.size(-1) % 2 == 0, "x must be [..., tokens, even], got ", x.sizes());
  TORCH_CHECK(frames > 0 && height > 0 && width > 0 && frames <= INT32_MAX && height <= INT32_MAX &&
                  width <= INT32_MAX && x.size(-2) == frames * height * width,
              "x must have frames * height * width = ", frames, " * ", height, " * ", width, " tokens, got ", x.size(-2));
  TORCH_CHECK(x.size(-2) <= INT32_MAX, "x must have fewer than 2**31 tokens a batch entry, got ", x.size(-2));
  TORCH_CHECK(table_.scalar_type() == at::kFloat && table_.device() == x.device(),
              "table must be float32 and on the device of x");
  TORCH_CHECK(table_.dim() == 3 && table_.size(0) == frames + height + width && table_.size(1) == x.size(-1) / 6 &&
                  table_.size(2) == 2,
              "table must be [frames + height + width, ", x.size(-1) / 6, ", 2], got ", table_.sizes());
  if (x.numel() == 0) return;
  set_extent(op, x);
  const Tensor table = table_.contiguous();
  op.table = table.data_ptr<float>();
  op.frames = static_cast<int>(frames);
  op.height = static_cast<int>(height);
  op.width = static_cast<int>(width);
  Grouping grouping(op.rows, x.size(-2));
  take_output(grouping, out, &op.out, "out");
  take_input(grouping, x, &op.x);
  launch(op, ltx_ops::rotary_3d, grouping, x);
}

Tensor rotary_3d(const Tensor& x, const Tensor& table, int64_t frames, int64_t height, int64_t width) {
  Tensor out = empty_contiguous(x);
  run_rotary_3d(out, x, table, frames, height, width);
  return out;
}

void rotary_3d_out(Tensor& out, const Tensor& x, const Tensor& table, int64_t frames, int64_t height, int64_t width) {
  check_like(out, x, "out");
  run_rotary_3d(out, x, table, frames, height, width);
}

// ---- GEGLU ----

void run_geglu(const Tensor& out, Tensor x, bool tanh) {
  ltx_ops::Geglu op = {};
  op.type = scalar_of(x, "x");
  op.tanh = tanh;
  if (out.numel() == 0) return;
  set_extent(op, out);
  Grouping grouping(op.rows);
  take_output(grouping, out, &op.out, "out");
  take_input(grouping, x, &op.x);
  launch(op, ltx_ops::geglu, grouping, x);
}

void check_geglu(const Tensor& x) {
  check_input(x);
  TORCH_CHECK(x.size(-1) % 2 == 0, "the last dimension of x must be even, got ", x.size(-1));
}

Tensor geglu(const Tensor& x, bool tanh) {
  check_geglu(x);
  auto sizes = x.sizes().vec();
  sizes.back() /= 2;
  Tensor out = at::empty(sizes, x.options());
  run_geglu(out, x, tanh);
  return out;
}

void geglu_out(Tensor& out, const Tensor& x, bool tanh) {
  check_geglu(x);
  TORCH_CHECK(out.dim() == x.dim() && out.size(-1) * 2 == x.size(-1) &&
                  out.sizes().slice(0, x.dim() - 1) == x.sizes().slice(0, x.dim() - 1),
              "out must have the shape of x with half the last dimension, got ", out.sizes(), " for ", x.sizes());
  TORCH_CHECK(out.scalar_type() == x.scalar_type() && out.device() == x.device(),
              "out must have the dtype and the device of x");
  run_geglu(out, x, tanh);
}

}  // namespace

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  // rms_norm carries the gradient (see _register.py); rms_norm_forward is the same computation without it.
  ops.def("rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor");
  ops.def("rms_norm_forward(Tensor x, Tensor? weight, float eps) -> Tensor");
  ops.def("rms_norm_out(Tensor(a!) out, Tensor x, Tensor? weight, float eps) -> ()");
  ops.def("rms_norm_backward(Tensor grad, Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)");
  ops.def("ada_norm(Tensor x, Tensor scale, Tensor shift, float eps, bool centre) -> Tensor");
  ops.def("ada_norm_out(Tensor(a!) out, Tensor x, Tensor scale, Tensor shift, float eps, bool centre) -> ()");
  ops.def(
      "add_ada_norm(Tensor x, Tensor residual, Tensor? gate, Tensor scale, Tensor shift, float eps, bool centre)"
      " -> (Tensor, Tensor)");
  ops.def(
      "add_ada_norm_out(Tensor(a!) out, Tensor(b!) residual_out, Tensor x, Tensor residual, Tensor? gate, Tensor scale,"
      " Tensor shift, float eps, bool centre) -> ()");
  ops.def("gated_add(Tensor x, Tensor residual, Tensor gate) -> Tensor");
  ops.def("gated_add_out(Tensor(a!) out, Tensor x, Tensor residual, Tensor gate) -> ()");
  ops.def("rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  ops.def("rotary_out(Tensor(a!) out, Tensor x, Tensor cos, Tensor sin) -> ()");
  ops.def("rotary_3d(Tensor x, Tensor table, int frames, int height, int width) -> Tensor");
  ops.def("rotary_3d_out(Tensor(a!) out, Tensor x, Tensor table, int frames, int height, int width) -> ()");
  ops.def("geglu(Tensor x, bool tanh) -> Tensor");
  ops.def("geglu_out(Tensor(a!) out, Tensor x, bool tanh) -> ()");
}

#if defined(CUDA_KERNEL)
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("rms_norm", &rms_norm);
  ops.impl("rms_norm_forward", &rms_norm);
  ops.impl("rms_norm_out", &rms_norm_out);
  ops.impl("rms_norm_backward", &rms_norm_backward);
  ops.impl("ada_norm", &ada_norm);
  ops.impl("ada_norm_out", &ada_norm_out);
  ops.impl("add_ada_norm", &add_ada_norm);
  ops.impl("add_ada_norm_out", &add_ada_norm_out);
  ops.impl("gated_add", &gated_add);
  ops.impl("gated_add_out", &gated_add_out);
  ops.impl("rotary", &rotary);
  ops.impl("rotary_out", &rotary_out);
  ops.impl("rotary_3d", &rotary_3d);
  ops.impl("rotary_3d_out", &rotary_3d_out);
  ops.impl("geglu", &geglu);
  ops.impl("geglu_out", &geglu_out);
}
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
