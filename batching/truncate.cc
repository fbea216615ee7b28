#include "batching/truncate.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::batching {
namespace {

// Counts the items that end at or before token `tokens`. Blocks of one modality do not overlap.
Cut CutAt(absl::Span<const Blocks> modalities, int64_t tokens) {
  Cut cut;
  cut.tokens = tokens;
  for (const Blocks& blocks : modalities) {
    cut.items.push_back(std::count_if(blocks.begin(), blocks.end(),
                                      [&](const Block& block) { return block.end <= tokens; }));
  }
  return cut;
}

// Returns the first block found that a cut at `tokens` would split, or null.
const Block* FindSplit(absl::Span<const Blocks> modalities, int64_t tokens) {
  for (const Blocks& blocks : modalities) {
    for (const Block& block : blocks) {
      if (block.begin < tokens && tokens < block.end) return &block;
    }
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Blocks> BlocksByRows(absl::Span<const int64_t> token_types, int64_t type,
                                    absl::Span<const int64_t> rows) {
  std::vector<int64_t> placeholders;
  for (size_t t = 0; t < token_types.size(); ++t) {
    if (token_types[t] == type) placeholders.push_back(static_cast<int64_t>(t));
  }
  int64_t all_rows = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("item ", i, " has ", rows[i], " rows; its grid must be positive"));
    }
    all_rows += rows[i];
  }
  const int64_t all_tokens = static_cast<int64_t>(placeholders.size());
  if ((all_rows == 0) != (all_tokens == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tokens have ", all_tokens, " placeholders, but the grid counts ", all_rows, " rows"));
  }
  Blocks blocks;
  int64_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] * all_tokens % all_rows != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "item ", i, " has ", rows[i], " of ", all_rows, " rows, which is not a whole number of ",
          all_tokens, " placeholders; grid and placeholders contradict each other"));
    }
    const int64_t tokens = rows[i] * all_tokens / all_rows;
    blocks.push_back({placeholders[static_cast<size_t>(next)],
                      placeholders[static_cast<size_t>(next + tokens - 1)] + 1, rows[i]});
    next += tokens;
  }
  return blocks;
}

absl::StatusOr<Blocks> BlocksByRuns(absl::Span<const int64_t> token_types, int64_t type,
                                    int64_t num_items) {
  Blocks blocks;
  for (size_t t = 0; t < token_types.size(); ++t) {
    if (token_types[t] != type) continue;
    const int64_t token = static_cast<int64_t>(t);
    if (blocks.empty() || blocks.back().end != token) blocks.push_back({token, token, 1});
    blocks.back().end = token + 1;
  }
  if (static_cast<int64_t>(blocks.size()) != num_items) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tokens have ", blocks.size(), " runs of placeholders, but there are ", num_items,
        " items; each item needs one run, with another token between two runs"));
  }
  return blocks;
}

// Each block found moves the cut before itself: the position only falls, and a position that is
// skipped would split that block.
Cut CutSample(absl::Span<const Blocks> modalities, int64_t max_tokens) {
  int64_t tokens = max_tokens;
  while (const Block* split = FindSplit(modalities, tokens)) tokens = split->begin;
  return CutAt(modalities, tokens);
}

Cut ShortestCut(absl::Span<const Blocks> modalities) {
  int64_t tokens = 1;
  for (const Blocks& blocks : modalities) {
    if (!blocks.empty()) tokens = std::max(tokens, blocks.front().end);
  }
  while (const Block* split = FindSplit(modalities, tokens)) tokens = split->end;
  return CutAt(modalities, tokens);
}

}  // namespace lockstep::batching
