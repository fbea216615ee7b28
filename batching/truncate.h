// Where a sample that is too long is cut, so that no image is split.
//
// The failure this prevents. A multimodal sample holds, for each image, a block of placeholder
// tokens and rows of pixels. Cut the tokens alone, and the model is handed more image features than
// it has places for; cut inside a block, and features slip to the wrong image.
//
//   // Two images of 4 patches, 2 tokens each; the second block starts at token 4.
//   absl::StatusOr<Cut> cut = CutSample({.token_types = {0, 1, 1, 0, 1, 1, 0}, .patches = {4, 4}},
//   5);
//   // cut->tokens == 4, cut->images == 1, cut->patches == 4: the second image is gone as a whole.
//
// Source: prime-rl's preparation of multimodal samples.

#ifndef LOCKSTEP_BATCHING_TRUNCATE_H_
#define LOCKSTEP_BATCHING_TRUNCATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::batching {

struct MultimodalSample {
  absl::Span<const int64_t> token_types;  // one for each token; `image_type` marks a placeholder
  absl::Span<const int64_t> patches;      // of each image in order: the product of its grid's row
  int64_t image_type = 1;
};

struct Cut {
  int64_t tokens = 0;   // that stay, from the first
  int64_t images = 0;   // that stay, from the first
  int64_t patches = 0;  // of these images together
};

// Images have tokens in proportion to their patches: patches / (all patches / all placeholders),
// which is the tower's merging factor. The cut is at `max_tokens`, or at the first placeholder of
// the first image that would not survive whole.
//
// InvalidArgument where placeholders and patches contradict each other: placeholders without
// images, images without placeholders, or a ratio that gives some image a fraction of a token.
absl::StatusOr<Cut> CutSample(const MultimodalSample& sample, int64_t max_tokens);

// The shortest cut that keeps `images` images whole (at most those there are), and at least one
// token.
absl::StatusOr<Cut> CutToImages(const MultimodalSample& sample, int64_t images);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_TRUNCATE_H_
