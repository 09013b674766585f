@% if cpu %@
#include "@{function}.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>

namespace kernel {
namespace {

template <typename T>
const char* run(void* out, const void* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = static_cast<float>(static_cast<const T*>(in)[i]);
    static_cast<T*>(out)[i] = static_cast<T>(x / (1.0f + std::exp(-x)));
  }
  return nullptr;
}

}  // namespace

const char* @{function}(void* out, const void* in, int64_t n, Scalar scalar, void*) {
  switch (scalar) {
    case Scalar::kFloat32:
      return run<float>(out, in, n);
    case Scalar::kFloat16:
      return run<torch::headeronly::Half>(out, in, n);
    case Scalar::kBFloat16:
      return run<torch::headeronly::BFloat16>(out, in, n);
  }
  return "unknown dtype";
}

}  // namespace kernel
@% endif %@
