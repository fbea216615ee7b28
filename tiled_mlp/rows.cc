#include "tiled_mlp/rows.h"

#include <algorithm>
#include <vector>

#include "ATen/ops/cat.h"

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

}  // namespace lockstep::tiled_mlp
