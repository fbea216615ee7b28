// Another project's program: splits a dataset over ranks with @lockstep//sharding.

#include "lockstep/sharding/dataset/shard.h"

#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>

#include "absl/status/statusor.h"

int main() {
  namespace sharding = lockstep::sharding;
  std::set<int64_t> seen;
  for (int rank = 0; rank < 3; ++rank) {
    absl::StatusOr<sharding::Shard> shard =
        sharding::Shard::Make({.size = 10, .rank = rank, .world = 3, .seed = 1});
    if (!shard.ok()) return 1;
    while (const std::optional<int64_t> index = shard->Next()) seen.insert(*index);
    std::printf("rank %d: %d samples\n", rank, static_cast<int>(shard->length()));
  }
  std::printf("%d different samples\n", static_cast<int>(seen.size()));
  return 0;
}
