#include "torch_binding.h"

#include <torch/library.h>

#include "registration.h"

#if defined(CUDA_KERNEL)
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../relu_cuda/relu.h"
#elif defined(CPU_KERNEL)
#include "../relu_cpu/relu.h"
#endif

namespace {

void check(const at::Tensor& out, const at::Tensor& input) {
  TORCH_CHECK(input.is_contiguous() && out.is_contiguous(), "relu: input and out must be contiguous");
  TORCH_CHECK(input.sizes() == out.sizes(), "relu: input has shape ", input.sizes(), ", out has ", out.sizes());
  TORCH_CHECK(input.scalar_type() == out.scalar_type(), "relu: input is ", input.scalar_type(), ", out is ",
              out.scalar_type());
  TORCH_CHECK(input.device() == out.device(), "relu: input is on ", input.device(), ", out on ", out.device());
}

}  // namespace

#if defined(CUDA_KERNEL)

void relu_out(at::Tensor& out, const at::Tensor& input) {
  check(out, input);
  ReluType type{};
  switch (input.scalar_type()) {
    case at::kFloat:
      type = ReluType::kFloat32;
      break;
    case at::kHalf:
      type = ReluType::kFloat16;
      break;
    case at::kBFloat16:
      type = ReluType::kBFloat16;
      break;
    default:
      TORCH_CHECK(false, "relu: float32, float16 and bfloat16 are supported on CUDA, not ", input.scalar_type());
  }
  const c10::cuda::CUDAGuard guard(input.device());
  C10_CUDA_CHECK(relu_cuda(out.mutable_data_ptr(), input.const_data_ptr(), input.numel(), type,
                           c10::cuda::getCurrentCUDAStream()));
}

#elif defined(CPU_KERNEL)

void relu_out(at::Tensor& out, const at::Tensor& input) {
  check(out, input);
  switch (input.scalar_type()) {
    case at::kFloat:
      return relu_cpu(out.mutable_data_ptr<float>(), input.const_data_ptr<float>(), input.numel());
    case at::kDouble:
      return relu_cpu(out.mutable_data_ptr<double>(), input.const_data_ptr<double>(), input.numel());
    default:
      TORCH_CHECK(false, "relu: float32 and float64 are supported on the CPU, not ", input.scalar_type());
  }
}

#endif

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("relu_out(Tensor(a!) out, Tensor input) -> ()"); }

#if defined(CUDA_KERNEL)
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) { ops.impl("relu_out", &relu_out); }
#elif defined(CPU_KERNEL)
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("relu_out", &relu_out); }
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
