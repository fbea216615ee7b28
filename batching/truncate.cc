#include "batching/truncate.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::batching {
namespace {

// Counts the items that end at or before token `tokens`. Ranges of one modality do not overlap.
Cut CutAt(absl::Span<const PlaceholderRanges> modalities, int64_t tokens) {
  Cut cut;
  cut.tokens = tokens;
  for (const PlaceholderRanges& ranges : modalities) {
    cut.items.push_back(
        std::count_if(ranges.begin(), ranges.end(),
                      [&](const PlaceholderRange& range) { return range.end <= tokens; }));
  }
  return cut;
}

// Returns the first range found that a cut at `tokens` would split, or null.
const PlaceholderRange* FindSplit(absl::Span<const PlaceholderRanges> modalities, int64_t tokens) {
  for (const PlaceholderRanges& ranges : modalities) {
    for (const PlaceholderRange& range : ranges) {
      if (range.begin < tokens && tokens < range.end) return &range;
    }
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<PlaceholderRanges> PlaceholdersByRows(absl::Span<const int64_t> token_types,
                                                     int64_t type, absl::Span<const int64_t> rows) {
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
  PlaceholderRanges ranges;
  int64_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] * all_tokens % all_rows != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "item ", i, " has ", rows[i], " of ", all_rows, " rows, which is not a whole number of ",
          all_tokens, " placeholders; grid and placeholders contradict each other"));
    }
    const int64_t tokens = rows[i] * all_tokens / all_rows;
    ranges.push_back({placeholders[static_cast<size_t>(next)],
                      placeholders[static_cast<size_t>(next + tokens - 1)] + 1, rows[i]});
    next += tokens;
  }
  return ranges;
}

absl::StatusOr<PlaceholderRanges> PlaceholdersByRuns(absl::Span<const int64_t> token_types,
                                                     int64_t type, int64_t num_items) {
  PlaceholderRanges ranges;
  for (size_t t = 0; t < token_types.size(); ++t) {
    if (token_types[t] != type) continue;
    const int64_t token = static_cast<int64_t>(t);
    if (ranges.empty() || ranges.back().end != token) ranges.push_back({token, token, 1});
    ranges.back().end = token + 1;
  }
  if (static_cast<int64_t>(ranges.size()) != num_items) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tokens have ", ranges.size(), " runs of placeholders, but there are ", num_items,
        " items; each item needs one run, with another token between two runs"));
  }
  return ranges;
}

// Each range found moves the cut before itself: the position only falls, and a position that is
// skipped would split that range.
Cut CutSample(absl::Span<const PlaceholderRanges> modalities, int64_t max_tokens) {
  int64_t tokens = max_tokens;
  while (const PlaceholderRange* split = FindSplit(modalities, tokens)) tokens = split->begin;
  return CutAt(modalities, tokens);
}

Cut ShortestCut(absl::Span<const PlaceholderRanges> modalities) {
  int64_t tokens = 1;
  for (const PlaceholderRanges& ranges : modalities) {
    if (!ranges.empty()) tokens = std::max(tokens, ranges.front().end);
  }
  while (const PlaceholderRange* split = FindSplit(modalities, tokens)) tokens = split->end;
  return CutAt(modalities, tokens);
}

}  // namespace lockstep::batching
