// Functions that all tiled nodes share: they treat a tensor of any leading shape as rows.

#ifndef LOCKSTEP_TILED_MLP_ROWS_H_
#define LOCKSTEP_TILED_MLP_ROWS_H_

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "tiled_mlp/tiled.h"
#include "tiled_mlp/tiles.h"

namespace lockstep::tiled_mlp {

// Returns the number of dimensions of x before its last, as int64_t.
inline int64_t NumLeadingDims(const at::Tensor& x) { return x.dim() - 1; }

// Returns the product of the first `leading` sizes.
int64_t CountRows(const at::Tensor& tensor, int64_t leading);

// Returns the rows range.begin to range.end - 1 of `tensor`, with its first `leading` dimensions as
// one: [range.size(), other sizes]. Returns a view if strides allow, else a copy of these rows.
at::Tensor Rows(const at::Tensor& tensor, int64_t leading, const TileRange& range);

// Returns the leading sizes of x, then the sizes of `output` [rows, ...] after its first.
std::vector<int64_t> SizesWithLeading(const at::Tensor& x, const at::Tensor& output);

// Returns `output`, which is contiguous, with these sizes. The result is not a view, so callers may
// modify it in place, as in y += x.
at::Tensor WithLeading(const at::Tensor& x, const at::Tensor& output);

// Returns whether every element is 0. Waits for the device.
bool IsZero(const at::Tensor& rows);

// Returns the tiles of x [..., hidden] and counts the call. Throws c10::ValueError if x is not a
// floating-point tensor with a dimension, and for the errors of PlanTiles.
TilePlan PlanCall(const at::Tensor& x, int64_t widest, double gradients_held,
                  const TileOptions& options);

// Throws if backward runs with create_graph: a tile's graph does not outlive its backward.
void CheckNoGraphIsMade();

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_ROWS_H_
