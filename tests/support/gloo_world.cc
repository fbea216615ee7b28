#include "tests/support/gloo_world.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>

#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace lockstep::tests {

GlooWorld MeetOverGloo(const Rank& rank) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  store_options.isServer = rank.rank == 0;
  GlooWorld world;
  world.store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(45));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  world.group = c10::make_intrusive<c10d::ProcessGroup>(world.store, rank.rank, rank.world_size);
  world.group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                          c10::make_intrusive<c10d::ProcessGroupGloo>(world.store, rank.rank,
                                                                      rank.world_size, options));
  world.group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return world;
}

}  // namespace lockstep::tests
