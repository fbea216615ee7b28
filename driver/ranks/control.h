// Small collectives that the program's own libraries use to agree, separate from the training's.

#ifndef LOCKSTEP_DRIVER_RANKS_CONTROL_H_
#define LOCKSTEP_DRIVER_RANKS_CONTROL_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "driver/ranks/world.h"
#include "sharding/agreement/collective.h"

namespace lockstep::driver {

// Makes a collective over sockets for up to 64 ranks, and over Gloo for more. It uses the CPU only,
// so no device waits. `timeout` limits the connecting and every later gathering. `purpose` names it
// in reports; if watched, its gatherings have `timeout` as the watchdog's limit. Throws c10::Error
// with the ranks that did not come. Collective: every rank of `ranks`, with this one, calls this
// equally often.
std::unique_ptr<sharding::Collective> NewControlCollective(const World& world,
                                                           const std::vector<int>& ranks,
                                                           std::chrono::milliseconds timeout,
                                                           const GroupPurpose& purpose);

// Does the same, but does not report gatherings to the activity. Use it for a part of a collective
// that the activity already knows.
std::unique_ptr<sharding::Collective> NewUnwatchedCollective(const World& world,
                                                             const std::vector<int>& ranks,
                                                             std::chrono::milliseconds timeout,
                                                             const GroupPurpose& purpose);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_CONTROL_H_
