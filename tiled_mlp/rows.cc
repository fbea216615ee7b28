#include "tiled_mlp/rows.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/_unsafe_view.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "absl/status/statusor.h"
#include "c10/util/Exception.h"

namespace lockstep::tiled_mlp {
namespace {

bool CanCollapse(const at::Tensor& tensor, int64_t leading) {
  for (int64_t d = 0; d + 1 < leading; ++d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != tensor.stride(d + 1) * tensor.size(d + 1))
      return false;
  }
  return true;
}

}  // namespace

int64_t CountRows(const at::Tensor& tensor, int64_t leading) {
  int64_t rows = 1;
  for (int64_t d = 0; d < leading; ++d) rows *= tensor.size(d);
  return rows;
}

at::Tensor Rows(const at::Tensor& tensor, int64_t leading, const TileRange& range) {
  if (leading == 0) return tensor.unsqueeze(0).narrow(0, range.begin, range.size());
  if (leading == 1) return tensor.narrow(0, range.begin, range.size());
  if (range.size() == 0 || CanCollapse(tensor, leading))
    return tensor.flatten(0, leading - 1).narrow(0, range.begin, range.size());
  // From each slice of dimension 0 that the range touches, its part.
  const int64_t inner = CountRows(tensor[0], leading - 1);
  std::vector<at::Tensor> parts;
  for (int64_t begin = range.begin; begin < range.end;) {
    const int64_t slice = begin / inner;
    const int64_t end = std::min(range.end, (slice + 1) * inner);
    parts.push_back(Rows(tensor[slice], leading - 1, {begin - slice * inner, end - slice * inner}));
    begin = end;
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

std::vector<int64_t> SizesWithLeading(const at::Tensor& x, const at::Tensor& output) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end() - 1);
  sizes.insert(sizes.end(), output.sizes().begin() + 1, output.sizes().end());
  return sizes;
}

at::Tensor WithLeading(const at::Tensor& x, const at::Tensor& output) {
  return at::_unsafe_view(output, SizesWithLeading(x, output));
}

bool IsZero(const at::Tensor& rows) {
  if (rows.numel() == 0) return true;
  const double infinity = std::numeric_limits<double>::infinity();
  // Most are not, and show it in their first row.
  if (at::linalg_vector_norm(rows[0], infinity).item<double>() != 0) return false;
  return at::linalg_vector_norm(rows, infinity).item<double>() == 0;
}

TilePlan PlanCall(const at::Tensor& x, int64_t widest, double gradients_held,
                  const TileOptions& options) {
  TORCH_CHECK_VALUE(x.defined() && x.dim() >= 1 && x.is_floating_point(),
                    "tiled_mlp: x must be a floating-point tensor [..., hidden], not ",
                    x.defined() ? x.toString() : "undefined",
                    x.defined() && x.dim() == 0 ? " of no dimensions" : "");
  const int64_t num_rows = CountRows(x, NumLeadingDims(x));
  absl::StatusOr<TilePlan> plan = PlanTiles({.tokens = num_rows,
                                             .hidden = x.size(-1),
                                             .widest = widest,
                                             .gradients_held = gradients_held},
                                            options.size);
  TORCH_CHECK_VALUE(plan.ok(), std::string(plan.status().message()));
  if (options.stats) {
    ++options.stats->calls;
    options.stats->untiled += plan->tiles.empty() ? 1 : 0;
    options.stats->tiles += static_cast<int64_t>(plan->tiles.size());
    options.stats->tile_tokens = plan->tiles.empty() ? num_rows : plan->tiles.front().size();
  }
  return *std::move(plan);
}

void CheckNoGraphIsMade() {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "tiled_mlp: backward with create_graph is not supported: the tiles' graphs are gone "
              "when it ends. Run this part untiled");
}

}  // namespace lockstep::tiled_mlp
