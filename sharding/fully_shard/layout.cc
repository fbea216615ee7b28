#include "sharding/fully_shard/layout.h"

#include <algorithm>

namespace lockstep::sharding {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Piece FlatLayout::PieceOf(size_t parameter, int rank) const {
  const int64_t first = offsets[parameter], last = first + sizes[parameter];
  const int64_t begin = std::max(first, span * rank), end = std::min(last, span * (rank + 1));
  if (begin >= end) return {};
  return {begin - first, begin - span * rank, end - begin};
}

FlatLayout LayOut(absl::Span<const int64_t> sizes, int ranks) {
  FlatLayout layout;
  int64_t end = 0;
  for (const int64_t size : sizes) {
    layout.sizes.push_back(size);
    layout.offsets.push_back(end);
    end += RoundUp(size, kAlignment);
  }
  layout.span = RoundUp((end + ranks - 1) / ranks, kAlignment);
  layout.total = layout.span * ranks;
  return layout;
}

}  // namespace lockstep::sharding
