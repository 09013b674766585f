#pragma once

#include <cstdint>

// out[i] = max(in[i], 0) for i < n; a NaN stays a NaN, as in torch.relu. T is float or double.
template <typename T>
void relu_cpu(T* out, const T* in, int64_t n);
