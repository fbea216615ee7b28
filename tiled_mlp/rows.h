// A tensor of any leading shape as rows, a tile of them at a time.

#ifndef LOCKSTEP_TILED_MLP_ROWS_H_
#define LOCKSTEP_TILED_MLP_ROWS_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"
#include "tiled_mlp/tiles.h"

namespace lockstep::tiled_mlp {

// The product of the first `leading` sizes.
int64_t CountRows(const at::Tensor& tensor, int64_t leading);

// Rows range.begin to range.end - 1 of `tensor`, its first `leading` dimensions taken as one: shape
// [range.size(), the other sizes]. A view where strides allow; else a copy of these rows alone.
at::Tensor Rows(const at::Tensor& tensor, int64_t leading, const TileRange& range);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_ROWS_H_
