// The ops of qwen3-8b over the stable ABI of PyTorch 2.10: one library per CUDA toolkit serves every later PyTorch.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "../rms_norm/folding.h"
#include "../rms_norm/rms_norm.h"
#include "registration.h"

// The shim declares it only under USE_CUDA, which not every builder sets.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

namespace {

using row_ops::Grouping;
using row_ops::RowsOf;
using row_ops::Scalar;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool take(Grouping& grouping, const Tensor& tensor, RowsOf* into) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  return grouping.take(tensor.data_ptr(), {static_cast<int64_t>(sizes.size()), sizes.data(), strides.data()}, into);
}

// Where the strides do not fit, a contiguous copy takes the place of the tensor.
void take_input(Grouping& grouping, Tensor& tensor, RowsOf* into) {
  if (take(grouping, tensor, into)) return;
  tensor = torch::stable::contiguous(tensor);
  STD_TORCH_CHECK(take(grouping, tensor, into), "a contiguous tensor always folds to rows");
}

void take_output(Grouping& grouping, const Tensor& tensor, RowsOf* into, const char* name) {
  STD_TORCH_CHECK(take(grouping, tensor, into), name, ": unsupported strides; pass a contiguous tensor");
}

Scalar scalar_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return Scalar::kFloat;
    case ScalarType::Half:
      return Scalar::kHalf;
    case ScalarType::BFloat16:
      return Scalar::kBFloat16;
    default:
      STD_TORCH_CHECK(false, name, " must be float32, float16 or bfloat16");
  }
}

void check_like(const Tensor& tensor, const Tensor& x, const char* name) {
  STD_TORCH_CHECK(tensor.sizes().equals(x.sizes()), name, " must have the shape of x");
  STD_TORCH_CHECK(tensor.scalar_type() == x.scalar_type(), name, " must have the dtype of x");
  STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == x.get_device_index(), name,
                  " must be on the device of x");
}

int64_t hidden_of(const Tensor& x) {
  STD_TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  STD_TORCH_CHECK(x.dim() >= 1, "x must have at least one dimension");
  const int64_t hidden = x.size(x.dim() - 1);
  STD_TORCH_CHECK(hidden <= INT32_MAX, "the last dimension of x must be below 2**31, got ", hidden);
  return hidden;
}

// Checks the weight and says where it lies; a strided one is copied into the holder.
template <typename Op>
void set_weight(Op& op, OptionalTensor& weight, const Tensor& x, int64_t hidden) {
  op.type = scalar_of(x, "x");
  op.weight_type = op.type;
  if (!weight.has_value()) return;
  STD_TORCH_CHECK(weight->dim() == 1 && weight->size(0) == hidden, "weight must have shape [", hidden, "]");
  op.weight_type = scalar_of(*weight, "weight");
  STD_TORCH_CHECK(op.weight_type == op.type || op.weight_type == Scalar::kFloat,
                  "weight must be float32 or have the dtype of x");
  STD_TORCH_CHECK(weight->is_cuda() && weight->get_device_index() == x.get_device_index(),
                  "weight must be on the device of x");
  if (!weight->is_contiguous()) weight = torch::stable::contiguous(*weight);
  op.weight = weight->data_ptr();
}

Tensor empty_contiguous(const Tensor& like) {
  const auto sizes = like.sizes();
  const auto dims = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (int64_t d = dims - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  int32_t dtype = 0;
  AtenTensorHandle result = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dims, sizes.data(), strides.data(), dtype,
                                                  aoti_torch_device_type_cuda(), like.get_device_index(), &result));
  return Tensor(result);
}

cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

void check(cudaError_t error) { STD_TORCH_CHECK(error == cudaSuccess, "CUDA: ", cudaGetErrorString(error)); }

void run(const Tensor& out, Tensor x, OptionalTensor weight, double eps, const Tensor* sum = nullptr,
         OptionalTensor residual = std::nullopt) {
  const int64_t hidden = hidden_of(x);
  row_ops::RmsNorm op = {};
  set_weight(op, weight, x, hidden);
  if (x.numel() == 0) return;
  op.rows = x.numel() / hidden;
  op.hidden = static_cast<int>(hidden);
  op.eps = static_cast<float>(eps);
  Grouping grouping(op.rows);
  take_output(grouping, out, &op.out, "out");
  if (sum != nullptr) {
    take_output(grouping, *sum, &op.sum, "residual_out");
    take_input(grouping, *residual, &op.residual);
  }
  take_input(grouping, x, &op.x);
  op.inner_rows = grouping.settle();
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check(row_ops::rms_norm(op, current_stream(x)));
}

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, double eps) {
  Tensor out = empty_contiguous(x);
  run(out, x, weight, eps);
  return out;
}

void rms_norm_out(Tensor& out, const Tensor& x, const OptionalTensor& weight, double eps) {
  check_like(out, x, "out");
  run(out, x, weight, eps);
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const OptionalTensor& weight,
                                        double eps) {
  check_like(residual, x, "residual");
  Tensor out = empty_contiguous(x);
  Tensor sum = empty_contiguous(x);
  run(out, x, weight, eps, &sum, residual);
  return {out, sum};
}

void add_rms_norm_out(Tensor& out, Tensor& residual_out, const Tensor& x, const Tensor& residual,
                      const OptionalTensor& weight, double eps) {
  check_like(residual, x, "residual");
  check_like(out, x, "out");
  check_like(residual_out, x, "residual_out");
  run(out, x, weight, eps, &residual_out, residual);
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_, const Tensor& x_, const OptionalTensor& weight_,
                                             double eps) {
  Tensor grad = grad_;
  Tensor x = x_;
  OptionalTensor weight = weight_;
  check_like(grad, x, "grad");
  const int64_t hidden = hidden_of(x);
  row_ops::RmsNormBackward op = {};
  set_weight(op, weight, x, hidden);
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  Tensor grad_x = empty_contiguous(x);
  Tensor grad_weight = weight.has_value() ? torch::stable::new_zeros(*weight, {hidden}) : torch::stable::new_empty(x, {0});
  if (x.numel() == 0) return {grad_x, grad_weight};
  op.rows = x.numel() / hidden;
  op.hidden = static_cast<int>(hidden);
  op.eps = static_cast<float>(eps);
  check(row_ops::rms_norm_backward_parts(op.rows, &op.parts));
  OptionalTensor parts;
  if (weight.has_value()) {
    parts = torch::stable::new_empty(x, {op.parts, hidden}, ScalarType::Float);
    op.grad_weight_parts = static_cast<float*>(parts->data_ptr());
    op.grad_weight = grad_weight.data_ptr();
  }
  Grouping grouping(op.rows);
  take_output(grouping, grad_x, &op.grad_x, "grad_x");
  take_input(grouping, grad, &op.grad);
  take_input(grouping, x, &op.x);
  op.inner_rows = grouping.settle();
  check(row_ops::rms_norm_backward(op, current_stream(x)));
  return {grad_x, grad_weight};
}

}  // namespace

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  // rms_norm carries the gradient (see __init__.py); rms_norm_forward is the same computation without it.
  ops.def("rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor");
  ops.def("rms_norm_forward(Tensor x, Tensor? weight, float eps) -> Tensor");
  ops.def("rms_norm_out(Tensor(a!) out, Tensor x, Tensor? weight, float eps) -> ()");
  ops.def("rms_norm_backward(Tensor grad, Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)");
  ops.def("add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)");
  ops.def("add_rms_norm_forward(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)");
  ops.def(
      "add_rms_norm_out(Tensor(a!) out, Tensor(b!) residual_out, Tensor x, Tensor residual, Tensor? weight, float eps)"
      " -> ()");
}

#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("rms_norm", TORCH_BOX(&rms_norm));
  ops.impl("rms_norm_forward", TORCH_BOX(&rms_norm));
  ops.impl("rms_norm_out", TORCH_BOX(&rms_norm_out));
  ops.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
  ops.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  ops.impl("add_rms_norm_forward", TORCH_BOX(&add_rms_norm));
  ops.impl("add_rms_norm_out", TORCH_BOX(&add_rms_norm_out));
}
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
