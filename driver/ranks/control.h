// Collectives of a few bytes that the program's own libraries agree by, apart from the training's.

#ifndef LOCKSTEP_DRIVER_RANKS_CONTROL_H_
#define LOCKSTEP_DRIVER_RANKS_CONTROL_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "driver/ranks/world.h"
#include "sharding/agreement/collective.h"

namespace lockstep::driver {

// Over sockets between up to 64 ranks, over Gloo between more. Over the CPU in any case: no device
// waits. Collective: every rank of `ranks`, which this rank is one of, calls this equally often.
// `timeout` bounds the meeting and every later gathering. `purpose`: as reports name it; watched,
// its gatherings have `timeout` for the watchdog's limit. Throws c10::Error that names the ranks
// that did not come.
std::unique_ptr<sharding::Collective> NewControlCollective(const World& world,
                                                           const std::vector<int>& ranks,
                                                           std::chrono::milliseconds timeout,
                                                           const GroupPurpose& purpose);

// As NewControlCollective, but its gatherings are told to nobody: for what is part of a collective
// that the activity knows of.
std::unique_ptr<sharding::Collective> NewUnwatchedCollective(const World& world,
                                                             const std::vector<int>& ranks,
                                                             std::chrono::milliseconds timeout,
                                                             const GroupPurpose& purpose);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_CONTROL_H_
