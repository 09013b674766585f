"""A project whose device code takes a while to compile, as real ones do: norms with every width a template.

RMSNorm and LayerNorm x three dtypes x twelve widths x with or without a residual x weights in the input's type or
float: 288 kernels, each for every CUDA architecture. The bindings are as large as those of the relu example.
"""

from pathlib import Path

WIDTHS = (512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)
TYPES = ("float", "__half", "__nv_bfloat16")

BUILD = """\
[general]
name = "wide-norm"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cuda"]

[torch]
src = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]

[kernel.norm]
backend = "cuda"
depends = []
src = ["norm/norm.cu", "norm/norm.h"]
"""

HEADER = """\
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

struct NormArguments {
  void* out;
  const void* in;
  const void* weight;
  void* residual;  // nullptr: none; else in += residual, and the sum is written back
  int64_t rows;
  int width;
  int type;  // 0 float, 1 half, 2 bfloat16
  bool float_weight;
  bool centered;  // LayerNorm, else RMSNorm
  float epsilon;
};

cudaError_t wide_norm_cuda(const NormArguments& arguments, cudaStream_t stream);
"""

KERNEL = """\
#include "norm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

__device__ float block_sum(float x) {
  __shared__ float partial[32];
  __syncthreads();  // an earlier sum may still be read
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  if (threadIdx.x % 32 == 0) {
    partial[threadIdx.x / 32] = x;
  }
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0f;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

// One row a block, held in registers: `kWidth` elements over `kThreads` threads in 16-byte vectors.
template <typename T, typename W, int kWidth, bool kResidual, bool kCentered>
__global__ __launch_bounds__(256) void norm_kernel(T* __restrict__ out, const T* __restrict__ in,
                                                   const W* __restrict__ weight, T* __restrict__ residual,
                                                   float epsilon) {
  constexpr int kThreads = 256;
  constexpr int kVector = Vector<T>::kSize;
  constexpr int kSteps = (kWidth + kThreads * kVector - 1) / (kThreads * kVector);
  const int64_t row = int64_t(blockIdx.x) * kWidth;
  float held[kSteps][kVector];
  float sum = 0.0f;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int column = (step * kThreads + threadIdx.x) * kVector;
    if (column < kWidth) {
      Vector<T> x = *reinterpret_cast<const Vector<T>*>(in + row + column);
      if constexpr (kResidual) {
        Vector<T>* place = reinterpret_cast<Vector<T>*>(residual + row + column);
        Vector<T> r = *place;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          r.values[i] = static_cast<T>(static_cast<float>(x.values[i]) + static_cast<float>(r.values[i]));
        }
        *place = x = r;
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        held[step][i] = static_cast<float>(x.values[i]);
        sum += kCentered ? held[step][i] : held[step][i] * held[step][i];
      }
    }
  }
  if constexpr (kCentered) {
    const float mean = block_sum(sum) / kWidth;
    sum = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if ((step * kThreads + threadIdx.x) * kVector < kWidth) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          held[step][i] -= mean;
          sum += held[step][i] * held[step][i];
        }
      }
    }
  }
  const float scale = rsqrtf(block_sum(sum) / kWidth + epsilon);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int column = (step * kThreads + threadIdx.x) * kVector;
    if (column < kWidth) {
      Vector<T> y;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        y.values[i] = static_cast<T>(held[step][i] * scale * static_cast<float>(weight[column + i]));
      }
      *reinterpret_cast<Vector<T>*>(out + row + column) = y;
    }
  }
}

template <typename T, typename W, int kWidth, bool kCentered>
cudaError_t launch_kind(const NormArguments& a, cudaStream_t stream) {
  T *out = static_cast<T*>(a.out), *residual = static_cast<T*>(a.residual);
  const T* in = static_cast<const T*>(a.in);
  const W* weight = static_cast<const W*>(a.weight);
  const unsigned rows = static_cast<unsigned>(a.rows);
  if (residual != nullptr) {
    norm_kernel<T, W, kWidth, true, kCentered><<<rows, 256, 0, stream>>>(out, in, weight, residual, a.epsilon);
  } else {
    norm_kernel<T, W, kWidth, false, kCentered><<<rows, 256, 0, stream>>>(out, in, weight, residual, a.epsilon);
  }
  return cudaGetLastError();
}

template <typename T, typename W, int kWidth>
cudaError_t launch(const NormArguments& a, cudaStream_t stream) {
  return a.centered ? launch_kind<T, W, kWidth, true>(a, stream) : launch_kind<T, W, kWidth, false>(a, stream);
}

template <typename T, typename W>
cudaError_t by_width(const NormArguments& a, cudaStream_t stream) {
  switch (a.width) {
@CASES@
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t by_weight(const NormArguments& a, cudaStream_t stream) {
  return a.float_weight ? by_width<T, float>(a, stream) : by_width<T, T>(a, stream);
}

}  // namespace

cudaError_t wide_norm_cuda(const NormArguments& a, cudaStream_t stream) {
  if (a.rows == 0) {
    return cudaSuccess;
  }
  switch (a.type) {
@TYPES@
  }
  return cudaErrorInvalidValue;
}
"""

BINDING_HEADER = """\
#pragma once

#include <ATen/core/Tensor.h>

void wide_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight, double epsilon,
               bool centered);
"""

BINDING = """\
#include "torch_binding.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "../norm/norm.h"
#include "registration.h"

namespace {

int type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return 0;
    case at::kHalf:
      return 1;
    case at::kBFloat16:
      return 2;
    default:
      TORCH_CHECK(false, "wide_norm: no kernel for ", tensor.scalar_type());
  }
}

}  // namespace

void wide_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight, double epsilon,
               bool centered) {
  TORCH_CHECK(input.is_contiguous() && out.is_contiguous(), "wide_norm: input and out must be contiguous");
  TORCH_CHECK(input.sizes() == out.sizes(), "wide_norm: input has shape ", input.sizes(), ", out ", out.sizes());
  TORCH_CHECK(weight.numel() == input.size(-1), "wide_norm: weight has ", weight.numel(), " elements");
  const c10::cuda::CUDAGuard guard(input.device());
  const NormArguments arguments{out.mutable_data_ptr(),
                                input.const_data_ptr(),
                                weight.const_data_ptr(),
                                nullptr,
                                input.numel() / input.size(-1),
                                static_cast<int>(input.size(-1)),
                                type_of(input),
                                weight.scalar_type() == at::kFloat,
                                centered,
                                static_cast<float>(epsilon)};
  C10_CUDA_CHECK(wide_norm_cuda(arguments, c10::cuda::getCurrentCUDAStream()));
}

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("wide_norm(Tensor(a!) out, Tensor input, Tensor weight, float epsilon, bool centered) -> ()");
}
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) { ops.impl("wide_norm", &wide_norm); }

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""

PYTHON = """\
from ._ops import ops

__all__ = ["ops"]
"""


def write(root: Path) -> None:
    """Lay the project out in a new folder."""
    cases = "\n".join(
        f"    case {width}:\n      return launch<T, W, {width}>(a, stream);" for width in WIDTHS
    )
    types = "\n".join(
        f"    case {number}:\n      return by_weight<{name}>(a, stream);" for number, name in enumerate(TYPES)
    )
    files = {
        "build.toml": BUILD,
        "norm/norm.h": HEADER,
        "norm/norm.cu": KERNEL.replace("@CASES@", cases).replace("@TYPES@", types),
        "torch-ext/torch_binding.h": BINDING_HEADER,
        "torch-ext/torch_binding.cpp": BINDING,
        "torch-ext/wide_norm/__init__.py": PYTHON,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
