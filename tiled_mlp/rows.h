// A tensor of any leading shape as rows, a tile of them at a time: what all tiled nodes share.

#ifndef LOCKSTEP_TILED_MLP_ROWS_H_
#define LOCKSTEP_TILED_MLP_ROWS_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "tiled_mlp/tiled.h"
#include "tiled_mlp/tiles.h"

namespace lockstep::tiled_mlp {

// Dimensions of x before its last, as int64_t.
inline int64_t Leading(const at::Tensor& x) { return x.dim() - 1; }

// The product of the first `leading` sizes.
int64_t CountRows(const at::Tensor& tensor, int64_t leading);

// Rows range.begin to range.end - 1 of `tensor`, its first `leading` dimensions taken as one: shape
// [range.size(), the other sizes]. A view where strides allow; else a copy of these rows alone.
at::Tensor Rows(const at::Tensor& tensor, int64_t leading, const TileRange& range);

// The leading sizes of x and the sizes of `output`, [rows, ...], after its first.
std::vector<int64_t> SizesWithLeading(const at::Tensor& x, const at::Tensor& output);

// `output`, contiguous, with these sizes. No view: what a node returns may be modified in place, as
// in y += x.
at::Tensor WithLeading(const at::Tensor& x, const at::Tensor& output);

// Whether every element is 0. Waits for the device.
bool IsZero(const at::Tensor& rows);

// The tiles of x, [..., hidden]; counts the call. Throws c10::ValueError for an x that is no such
// tensor, and for what PlanTiles refuses.
TilePlan PlanCall(const at::Tensor& x, int64_t widest, double gradients_held,
                  const TileOptions& options);

// Throws where backward is run with create_graph: a tile's graph is gone when it ends.
void CheckNoGraphIsMade();

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_ROWS_H_
