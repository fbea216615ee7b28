// Lays the parameters of a unit out in one flat array that is cut into equal spans, one per rank.
//
//    const FlatLayout layout = LayOut({6, 1, 100}, /*ranks=*/2);
//    // layout.offsets == {0, 64, 128}; layout.span == 128; rank 0 keeps elements 0 to 127
//    const Piece piece = layout.PieceOf(/*parameter=*/2, /*rank=*/1);
//    // {.in_parameter = 0, .in_span = 0, .size = 100}: rank 1 keeps all of the third parameter
//
// The gathered array is the parameters: gathering needs no copy afterwards. The array of their
// gradients is reduced as it is. A cut may fall anywhere, so a parameter of any shape can be
// divided, and a small one may be on one rank only.
//
// Offsets and spans are multiples of kAlignment elements. Kernels read vectors of 16 bytes from the
// beginning of a parameter. A span begins at a cache line in every dtype of two bytes or more.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_LAYOUT_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace lockstep::sharding {

inline constexpr int64_t kAlignment = 64;  // elements

// The part of a parameter that one rank keeps. Empty where `size` is 0.
struct Piece {
  int64_t in_parameter = 0;  // its first element, counted in the parameter
  int64_t in_span = 0;       // the same element, counted in the rank's span
  int64_t size = 0;
};

struct FlatLayout {
  std::vector<int64_t> sizes;    // elements of each parameter
  std::vector<int64_t> offsets;  // of its first element in the flat array
  int64_t span = 0;              // elements that each rank keeps
  int64_t total = 0;             // span times the number of ranks

  Piece PieceOf(size_t parameter, int rank) const;
};

// `sizes` are at least 0, `ranks` at least 1.
FlatLayout LayOut(absl::Span<const int64_t> sizes, int ranks);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_LAYOUT_H_
