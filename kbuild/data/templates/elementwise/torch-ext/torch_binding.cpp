@% if stable %@
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "../@{function}/@{function}.h"
#include "registration.h"

@% if cuda %@
#if defined(CUDA_KERNEL)
// The shim declares it only under USE_CUDA, which not every builder sets.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#endif

@% endif %@
// NB: it has a name, since the C library may have a function called the same: an address of it would be of either.
namespace binding {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

kernel::Scalar scalar_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return kernel::Scalar::kFloat32;
    case ScalarType::Half:
      return kernel::Scalar::kFloat16;
    case ScalarType::BFloat16:
      return kernel::Scalar::kBFloat16;
    default:
      STD_TORCH_CHECK(false, "@{function}: input must be float32, float16 or bfloat16");
  }
}

void @{function}_out(Tensor out, const Tensor& input) {
  STD_TORCH_CHECK(input.is_contiguous() && out.is_contiguous(), "@{function}: input and out must be contiguous");
  STD_TORCH_CHECK(out.sizes().equals(input.sizes()), "@{function}: out must have the shape of input");
  STD_TORCH_CHECK(out.scalar_type() == input.scalar_type(), "@{function}: out must have the dtype of input");
  STD_TORCH_CHECK(out.device() == input.device(), "@{function}: out must be on the device of input");
  void* stream = nullptr;
@% if cuda %@
#if defined(CUDA_KERNEL)
  const torch::stable::accelerator::DeviceGuard guard(input.get_device_index());
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(input.get_device_index(), &stream));
#endif
@% endif %@
  const char* error = kernel::@{function}(out.data_ptr(), input.data_ptr(), input.numel(), scalar_of(input), stream);
  STD_TORCH_CHECK(error == nullptr, "@{function}: ", error);
}

Tensor @{function}(const Tensor& input) {
  Tensor out = torch::stable::empty_like(input);
  binding::@{function}_out(out, input);
  return out;
}

}  // namespace
}  // namespace binding

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("@{function}(Tensor input) -> Tensor");
  ops.def("@{function}_out(Tensor(a!) out, Tensor input) -> ()");
}

@% if cuda %@
#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("@{function}", TORCH_BOX(&binding::@{function}));
  ops.impl("@{function}_out", TORCH_BOX(&binding::@{function}_out));
}
#endif
@% endif %@
@% if cpu %@
#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
  ops.impl("@{function}", TORCH_BOX(&binding::@{function}));
  ops.impl("@{function}_out", TORCH_BOX(&binding::@{function}_out));
}
#endif
@% endif %@
@% else %@
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

@% if cuda %@
#if defined(CUDA_KERNEL)
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

@% endif %@
#include "../@{function}/@{function}.h"
#include "registration.h"

// NB: it has a name, since the C library may have a function called the same: an address of it would be of either.
namespace binding {
namespace {

kernel::Scalar scalar_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernel::Scalar::kFloat32;
    case at::kHalf:
      return kernel::Scalar::kFloat16;
    case at::kBFloat16:
      return kernel::Scalar::kBFloat16;
    default:
      TORCH_CHECK(false, "@{function}: input must be float32, float16 or bfloat16, not ", tensor.scalar_type());
  }
}

void @{function}_out(at::Tensor& out, const at::Tensor& input) {
  TORCH_CHECK(input.is_contiguous() && out.is_contiguous(), "@{function}: input and out must be contiguous");
  TORCH_CHECK(out.sizes() == input.sizes(), "@{function}: out must have the shape of input, ", input.sizes(), ", not ",
              out.sizes());
  TORCH_CHECK(out.scalar_type() == input.scalar_type(), "@{function}: out must have the dtype of input, ",
              input.scalar_type(), ", not ", out.scalar_type());
  TORCH_CHECK(out.device() == input.device(), "@{function}: out must be on the device of input, ", input.device(), ", not ",
              out.device());
  void* stream = nullptr;
@% if cuda %@
#if defined(CUDA_KERNEL)
  const c10::cuda::CUDAGuard guard(input.device());
  stream = c10::cuda::getCurrentCUDAStream().stream();
#endif
@% endif %@
  const char* error =
      kernel::@{function}(out.mutable_data_ptr(), input.const_data_ptr(), input.numel(), scalar_of(input), stream);
  TORCH_CHECK(error == nullptr, "@{function}: ", error);
}

at::Tensor @{function}(const at::Tensor& input) {
  at::Tensor out = at::empty_like(input);
  binding::@{function}_out(out, input);
  return out;
}

}  // namespace
}  // namespace binding

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("@{function}(Tensor input) -> Tensor");
  ops.def("@{function}_out(Tensor(a!) out, Tensor input) -> ()");
}

@% if cuda %@
#if defined(CUDA_KERNEL)
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
  ops.impl("@{function}", &binding::@{function});
  ops.impl("@{function}_out", &binding::@{function}_out);
}
#endif
@% endif %@
@% if cpu %@
#if defined(CPU_KERNEL)
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
  ops.impl("@{function}", &binding::@{function});
  ops.impl("@{function}_out", &binding::@{function}_out);
}
#endif
@% endif %@
@% endif %@

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
