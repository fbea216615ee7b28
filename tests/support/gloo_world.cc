#include "tests/support/gloo_world.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "tests/strict/strict_backend.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace lockstep::tests {

c10::intrusive_ptr<c10d::Backend> NewGlooBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::string& name, int position,
                                                 const std::vector<int>& ranks, bool strict) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(45));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const int size = static_cast<int>(ranks.size());
  c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, position, size, options);
  // Gloo returns when this rank is connected. A test that ended now would break the connections
  // that others still make, and the store with rank 0.
  backend->barrier(c10d::BarrierOptions())->wait();
  // The messages of a bridge use Gloo even where there are GPUs.
  const bool is_twin =
      std::getenv("LOCKSTEP_STRICT_TWIN") != nullptr && !absl::EndsWith(name, ", messages");
  if (!strict && !is_twin) return backend;
  return c10::make_intrusive<StrictBackend>(std::move(backend), name, ranks);
}

namespace {

c10::intrusive_ptr<c10d::ProcessGroup> OverGloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                const std::string& name, int position,
                                                const std::vector<int>& ranks, bool strict) {
  const int size = static_cast<int>(ranks.size());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, position, size);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                    NewGlooBackend(store, name, position, ranks, strict));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace

GlooWorld MeetOverGloo(const Rank& rank) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  store_options.isServer = rank.rank == 0;
  GlooWorld world;
  world.store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options);
  std::vector<int> ranks(static_cast<size_t>(rank.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  world.group = OverGloo(world.store, "world", rank.rank, ranks, /*strict=*/false);
  return world;
}

c10::intrusive_ptr<c10d::ProcessGroup> NewGlooGroup(const GlooWorld& world, const std::string& name,
                                                    const std::vector<int>& ranks, bool strict) {
  const auto own = std::find(ranks.begin(), ranks.end(), world.group->getRank());
  if (own == ranks.end() || ranks.size() == 1) return nullptr;
  return OverGloo(c10::make_intrusive<c10d::PrefixStore>(name, world.store), name,
                  static_cast<int>(own - ranks.begin()), ranks, strict);
}

}  // namespace lockstep::tests
