@% if cpu %@
#include "@{function}.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>

namespace kernel {
namespace {

template <typename T>
const char* run(T* out, const T* in, const T* weight, int64_t rows, int64_t hidden, float eps) {
  for (int64_t row = 0; row < rows; ++row, in += hidden, out += hidden) {
    double squares = 0.0;
    for (int64_t c = 0; c < hidden; ++c) {
      const double x = static_cast<float>(in[c]);
      squares += x * x;
    }
    const float factor = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(hidden) + eps));
    for (int64_t c = 0; c < hidden; ++c) {
      const float y = static_cast<float>(in[c]) * factor;
      out[c] = static_cast<T>(weight == nullptr ? y : y * static_cast<float>(weight[c]));
    }
  }
  return nullptr;
}

template <typename T>
const char* run(void* out, const void* in, const void* weight, int64_t rows, int64_t hidden, float eps) {
  return run(static_cast<T*>(out), static_cast<const T*>(in), static_cast<const T*>(weight), rows, hidden, eps);
}

}  // namespace

const char* @{function}(void* out, const void* in, const void* weight, int64_t rows, int64_t hidden, float eps,
                     Scalar scalar, void*) {
  switch (scalar) {
    case Scalar::kFloat32:
      return run<float>(out, in, weight, rows, hidden, eps);
    case Scalar::kFloat16:
      return run<torch::headeronly::Half>(out, in, weight, rows, hidden, eps);
    case Scalar::kBFloat16:
      return run<torch::headeronly::BFloat16>(out, in, weight, rows, hidden, eps);
  }
  return "unknown dtype";
}

}  // namespace kernel
@% endif %@
