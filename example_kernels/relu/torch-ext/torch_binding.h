#pragma once

#include <ATen/core/Tensor.h>

// out = max(input, 0). Both tensors are contiguous, of one dtype, shape and device.
void relu_out(at::Tensor& out, const at::Tensor& input);
