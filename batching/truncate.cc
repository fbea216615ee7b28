#include "batching/truncate.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::batching {
namespace {

// An image's placeholders: the first one's position, and one past the last one's.
struct Block {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t patches = 0;
};

// The block of each image. Placeholders need not be contiguous: image i has the next tokens_i of
// them.
absl::StatusOr<std::vector<Block>> FindBlocks(const MultimodalSample& sample) {
  std::vector<int64_t> placeholders;
  for (size_t t = 0; t < sample.token_types.size(); ++t) {
    if (sample.token_types[t] == sample.image_type) placeholders.push_back(static_cast<int64_t>(t));
  }
  int64_t all_patches = 0;
  for (size_t i = 0; i < sample.patches.size(); ++i) {
    if (sample.patches[i] < 1) {
      return absl::InvalidArgumentError(absl::StrCat("image ", i, " has ", sample.patches[i],
                                                     " patches; its grid must be positive"));
    }
    all_patches += sample.patches[i];
  }
  const int64_t all_tokens = static_cast<int64_t>(placeholders.size());
  if ((all_patches == 0) != (all_tokens == 0)) {
    return absl::InvalidArgumentError(absl::StrCat("the tokens have ", all_tokens,
                                                   " image placeholders, but the grid has ",
                                                   all_patches, " patches"));
  }
  std::vector<Block> blocks;
  int64_t next = 0;
  for (size_t i = 0; i < sample.patches.size(); ++i) {
    const int64_t patches = sample.patches[i];
    if (patches * all_tokens % all_patches != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("image ", i, " has ", patches, " of ", all_patches,
                       " patches, which is no whole number of the ", all_tokens,
                       " placeholders; grid and token types contradict each other"));
    }
    const int64_t tokens = patches * all_tokens / all_patches;
    blocks.push_back({placeholders[static_cast<size_t>(next)],
                      placeholders[static_cast<size_t>(next + tokens - 1)] + 1, patches});
    next += tokens;
  }
  return blocks;
}

}  // namespace

absl::StatusOr<Cut> CutSample(const MultimodalSample& sample, int64_t max_tokens) {
  const absl::StatusOr<std::vector<Block>> blocks = FindBlocks(sample);
  if (!blocks.ok()) return blocks.status();
  Cut cut;
  cut.tokens = std::min(max_tokens, static_cast<int64_t>(sample.token_types.size()));
  for (const Block& block : *blocks) {
    if (block.end > cut.tokens) {
      cut.tokens = std::min(cut.tokens, block.begin);
      break;
    }
    ++cut.images;
    cut.patches += block.patches;
  }
  return cut;
}

absl::StatusOr<Cut> CutToImages(const MultimodalSample& sample, int64_t images) {
  const absl::StatusOr<std::vector<Block>> blocks = FindBlocks(sample);
  if (!blocks.ok()) return blocks.status();
  Cut cut;
  cut.tokens = std::min<int64_t>(1, static_cast<int64_t>(sample.token_types.size()));
  for (; cut.images < std::min<int64_t>(images, static_cast<int64_t>(blocks->size()));
       ++cut.images) {
    const Block& block = (*blocks)[static_cast<size_t>(cut.images)];
    cut.tokens = block.end;
    cut.patches += block.patches;
  }
  return cut;
}

}  // namespace lockstep::batching
