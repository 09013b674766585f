#include "../rms_norm/norm.cuh"
#include "ltx_ops.h"

namespace ltx_ops {
namespace {

template <typename T>
rows::Rows<T> as(const RowsOf& of) {
  return {static_cast<T*>(of.data), of.outer, of.inner};
}

template <typename T, rows::Centre kCentre>
cudaError_t run(const AdaNorm& op, cudaStream_t stream) {
  rows::NormArgs<T, T> args = {};
  args.x = as<const T>(op.x);
  args.residual = as<const T>(op.residual);
  args.gate = as<const T>(op.gate);
  args.scale = as<const T>(op.scale);
  args.shift = as<const T>(op.shift);
  args.out = as<T>(op.out);
  args.sum = as<T>(op.sum);
  args.rows = op.rows;
  args.inner_rows = op.inner_rows;
  args.hidden = op.hidden;
  args.eps = op.eps;
  if (op.residual.data != nullptr) return rows::norm<rows::Norm<T, T, true, true, kCentre>>(args, stream);
  return rows::norm<rows::Norm<T, T, false, true, kCentre>>(args, stream);
}

template <typename T>
cudaError_t with_centre(const AdaNorm& op, cudaStream_t stream) {
  return op.centre ? run<T, rows::Centre::kMean>(op, stream) : run<T, rows::Centre::kNone>(op, stream);
}

}  // namespace

cudaError_t ada_norm(const AdaNorm& op, cudaStream_t stream) {
  switch (op.type) {
    case Scalar::kFloat:
      return with_centre<float>(op, stream);
    case Scalar::kHalf:
      return with_centre<__half>(op, stream);
    case Scalar::kBFloat16:
      return with_centre<__nv_bfloat16>(op, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace ltx_ops
