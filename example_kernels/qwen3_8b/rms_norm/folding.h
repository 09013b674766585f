// How tensors of any leading shape become rows. No torch headers: both kinds of binding use it.
#pragma once

#include <cstdint>

#include "rms_norm.h"

namespace [[gnu::visibility("hidden")]] row_ops {

// Shape and strides (in elements) of a tensor of `dims` >= 1 dimensions whose last one is the row.
struct Layout {
  int64_t dims;
  const int64_t* sizes;
  const int64_t* strides;
};

// `inner_rows` rows `inner` apart, and such groups `outer` apart; `ok` is false where two levels are not enough, or where
// a row's elements are not neighbours.
struct Folding {
  bool ok;
  int64_t inner_rows;
  int64_t inner;
  int64_t outer;
};

inline Folding fold(const Layout& layout, int64_t rows) {
  const int64_t last = layout.dims - 1;
  if (layout.sizes[last] != 1 && layout.strides[last] != 1) return {false, 0, 0, 0};
  int64_t count[2] = {1, 1};
  int64_t stride[2] = {layout.sizes[last], 0};
  int level = 0;
  bool any = false;
  for (int64_t d = last - 1; d >= 0; --d) {
    if (layout.sizes[d] == 1) continue;
    if (!any) {
      stride[0] = layout.strides[d];
      any = true;
    } else if (layout.strides[d] != stride[level] * count[level]) {
      if (++level == 2) return {false, 0, 0, 0};
      stride[level] = layout.strides[d];
    }
    count[level] *= layout.sizes[d];
  }
  if (level == 0) return {true, rows, stride[0], 0};
  return {true, count[0], stride[0], stride[1]};
}

// Brings the row operands of one op to a common grouping.
class Grouping {
 public:
  explicit Grouping(int64_t rows) : Grouping(rows, rows) {}

  // Groups of `inner_rows` are wanted whatever the strides.
  Grouping(int64_t rows, int64_t inner_rows) : rows_(rows), inner_rows_(inner_rows) {}

  // False where the strides do not fit those taken before.
  bool take(void* data, const Layout& layout, RowsOf* into) {
    const Folding folding = fold(layout, rows_);
    if (!folding.ok) return false;
    if (folding.inner_rows == rows_) {
      even_[evens_++] = into;
    } else {
      if (inner_rows_ != rows_ && inner_rows_ != folding.inner_rows) return false;
      inner_rows_ = folding.inner_rows;
    }
    *into = {data, folding.outer, folding.inner};
    return true;
  }

  // The grouping that fits all, to which operands with evenly spaced rows are brought. Call it once, last.
  int64_t settle() const {
    for (int i = 0; i < evens_; ++i) even_[i]->outer = even_[i]->inner * inner_rows_;
    return inner_rows_;
  }

 private:
  static constexpr int kMostOperands = 8;
  int64_t rows_;
  int64_t inner_rows_;
  RowsOf* even_[kMostOperands] = {};
  int evens_ = 0;
};

}  // namespace row_ops
