#include "norm.cuh"
#include "rms_norm.h"

namespace row_ops {
namespace {

template <typename T>
rows::Rows<T> as(const RowsOf& of) {
  return {static_cast<T*>(of.data), of.outer, of.inner};
}

template <typename T, typename W>
cudaError_t run(const RmsNorm& op, cudaStream_t stream) {
  rows::NormArgs<T, W> args = {};
  args.x = as<const T>(op.x);
  args.residual = as<const T>(op.residual);
  args.out = as<T>(op.out);
  args.sum = as<T>(op.sum);
  args.weight = static_cast<const W*>(op.weight);
  args.rows = op.rows;
  args.inner_rows = op.inner_rows;
  args.hidden = op.hidden;
  args.eps = op.eps;
  if (op.residual.data != nullptr) return rows::norm<rows::Norm<T, W, true, false, rows::Centre::kNone>>(args, stream);
  return rows::norm<rows::Norm<T, W, false, false, rows::Centre::kNone>>(args, stream);
}

template <typename T>
cudaError_t with_weight_type(const RmsNorm& op, cudaStream_t stream) {
  return op.weight_type == op.type ? run<T, T>(op, stream) : run<T, float>(op, stream);
}

}  // namespace

cudaError_t rms_norm(const RmsNorm& op, cudaStream_t stream) {
  switch (op.type) {
    case Scalar::kFloat:
      return run<float, float>(op, stream);
    case Scalar::kHalf:
      return with_weight_type<__half>(op, stream);
    case Scalar::kBFloat16:
      return with_weight_type<__nv_bfloat16>(op, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace row_ops
