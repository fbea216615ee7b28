// Where to cut a sample that is too long, so that no image, video or audio clip is split.
//
// The failure this prevents. A multimodal sample holds placeholder tokens for each image, and rows
// of pixels. If only the tokens are cut, the model gets more image features than placeholders. If
// the cut is inside an image's placeholders, features move to the wrong image.
//
//    // Two images of 4 patches, 2 tokens each. The second one's placeholders start at token 4.
//
//    const std::vector<int64_t> types = {0, 1, 1, 0, 1, 1, 0};
//    absl::StatusOr<PlaceholderRanges> images = PlaceholdersByRows(types, 1, {4, 4});
//    Cut cut = CutSample({*images}, 5);
//    // cut.tokens == 4, cut.items[0] == 1: the cut removes the second image as a whole.
//
// A sample with several modalities is cut at one position for all of them.
//
// Source: prime-rl's preparation of multimodal samples. Thread-safe: pure functions.

#ifndef LOCKSTEP_BATCHING_TRUNCATE_H_
#define LOCKSTEP_BATCHING_TRUNCATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::batching {

// Where the placeholders of one image, video or audio clip lie: from token `begin` to token
// `end` - 1. Other tokens may lie between them, such as the timestamps of a video's frames.
struct PlaceholderRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t rows = 0;  // of the modality's tensor: an image's patches
};

// The range of each item of one modality, in order.
using PlaceholderRanges = std::vector<PlaceholderRange>;

// Returns the ranges of items that have placeholders in proportion to their rows, as images and
// videos do. Item i has rows[i] / (all rows / all placeholders) of them; the divisor is the tower's
// merging factor. `token_types` has one element per token; `type` marks a placeholder.
//
// Returns InvalidArgument for placeholders without rows, rows without placeholders, an item without
// rows, and where an item would have a fraction of a token.
absl::StatusOr<PlaceholderRanges> PlaceholdersByRows(absl::Span<const int64_t> token_types,
                                                     int64_t type, absl::Span<const int64_t> rows);

// Returns the ranges of items that have one row each, as audio clips do. Each run of neighbouring
// placeholders is one item. Returns InvalidArgument if there are not `num_items` runs.
absl::StatusOr<PlaceholderRanges> PlaceholdersByRuns(absl::Span<const int64_t> token_types,
                                                     int64_t type, int64_t num_items);

struct Cut {
  int64_t tokens = 0;          // The sample keeps its first `tokens` tokens.
  std::vector<int64_t> items;  // Number of items to keep, for each modality.
};

// Returns the longest cut of at most `max_tokens` tokens that splits no item's placeholders.
Cut CutSample(absl::Span<const PlaceholderRanges> modalities, int64_t max_tokens);

// Returns the shortest cut that has at least one token and at least one item of each modality with
// any items, and that splits no item's placeholders.
Cut ShortestCut(absl::Span<const PlaceholderRanges> modalities);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_TRUNCATE_H_
