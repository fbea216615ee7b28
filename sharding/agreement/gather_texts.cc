#include "sharding/agreement/gather_texts.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/raw_bytes.h"

namespace lockstep::sharding {

absl::StatusOr<std::vector<std::string>> GatherTexts(Collective& collective,
                                                     const std::string& text) {
  const uint64_t size = text.size();
  const absl::StatusOr<std::vector<std::string>> gathered =
      collective.StartAllGather(base::BytesOf(size))->Wait();
  if (!gathered.ok()) return gathered.status();
  std::vector<uint64_t> sizes;
  for (const std::string& bytes : *gathered)
    sizes.push_back(base::FromBytes<uint64_t>(bytes.data()));

  std::string padded = text;
  padded.resize(*std::max_element(sizes.begin(), sizes.end()), '\0');
  if (padded.empty()) return std::vector<std::string>(sizes.size());
  absl::StatusOr<std::vector<std::string>> texts = collective.StartAllGather(padded)->Wait();
  if (!texts.ok()) return texts.status();
  for (size_t rank = 0; rank < texts->size(); ++rank) (*texts)[rank].resize(sizes[rank]);
  return texts;
}

std::string DifferentLines(const Collective& collective, const std::vector<std::string>& texts,
                           int* count) {
  std::vector<std::vector<std::string>> lines;
  size_t most = 0;
  for (const std::string& text : texts) {
    lines.push_back(absl::StrSplit(text, '\n', absl::SkipEmpty()));
    most = std::max(most, lines.back().size());
  }
  constexpr int kShown = 5;
  *count = 0;
  std::string differences;
  for (size_t i = 0; i < most; ++i) {
    std::set<std::string> values;
    std::string versions;
    for (size_t rank = 0; rank < lines.size(); ++rank) {
      const std::string line = i < lines[rank].size() ? lines[rank][i] : "(nothing)";
      values.insert(line);
      absl::StrAppend(&versions, "\n  rank ", collective.WorldRank(static_cast<int>(rank)), ": ",
                      line);
    }
    if (values.size() > 1 && ++*count <= kShown) absl::StrAppend(&differences, versions);
  }
  return differences;
}

}  // namespace lockstep::sharding
