#include "sharding/agreement/gather_texts.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lockstep::sharding {

absl::StatusOr<std::vector<std::string>> GatherTexts(Collective& collective,
                                                     const std::string& text) {
  const uint64_t size = text.size();
  const absl::StatusOr<std::vector<std::string>> gathered =
      collective.StartAllGather(std::string(reinterpret_cast<const char*>(&size), sizeof(size)))
          ->Wait();
  if (!gathered.ok()) return gathered.status();
  std::vector<uint64_t> sizes;
  for (const std::string& bytes : *gathered)
    std::memcpy(&sizes.emplace_back(), bytes.data(), sizeof(uint64_t));

  std::string padded = text;
  padded.resize(*std::max_element(sizes.begin(), sizes.end()), '\0');
  if (padded.empty()) return std::vector<std::string>(sizes.size());
  absl::StatusOr<std::vector<std::string>> texts = collective.StartAllGather(padded)->Wait();
  if (!texts.ok()) return texts.status();
  for (size_t rank = 0; rank < texts->size(); ++rank) (*texts)[rank].resize(sizes[rank]);
  return texts;
}

}  // namespace lockstep::sharding
