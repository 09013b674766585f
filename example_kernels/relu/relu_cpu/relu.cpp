#include "relu.h"

template <typename T>
void relu_cpu(T* out, const T* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = in[i] < T(0) ? T(0) : in[i];
  }
}

template void relu_cpu<float>(float*, const float*, int64_t);
template void relu_cpu<double>(double*, const double*, int64_t);
