// Small collectives that the program's own libraries use to agree, separate from the training's.

#ifndef LOCKSTEP_DRIVER_RANKS_CONTROL_H_
#define LOCKSTEP_DRIVER_RANKS_CONTROL_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "c10/util/intrusive_ptr.h"
#include "driver/ranks/world.h"
#include "sharding/agreement/c10d_collective.h"
#include "sharding/agreement/collective.h"
#include "sharding/agreement/guard.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::driver {

// Makes a collective over sockets. It uses the CPU only, so no device waits. `timeout` limits
// connecting and every later all-gather. `purpose` names it in reports; if watched, its all-gathers
// have `timeout` as the watchdog's limit. Throws c10::Error with the ranks that did not come.
// Collective: every rank of `ranks`, with this one, calls this equally often.
std::unique_ptr<sharding::Collective> NewControlCollective(const World& world,
                                                           const std::vector<int>& ranks,
                                                           std::chrono::milliseconds timeout,
                                                           const GroupPurpose& purpose);

// Does the same for a watched collective called `name`. If `ranks` are all ranks in their order,
// its all-gathers have one order with the collectives that scripts call, and ranks that call
// different ones get an error at once: see script_calls.h. It then needs no connections of its own.
std::unique_ptr<sharding::Collective> NewComparedCollective(const World& world,
                                                            const std::vector<int>& ranks,
                                                            std::chrono::milliseconds timeout,
                                                            const std::string& name);

// Does the same for the ranks of a group that NewGroup or MeetRanks has made: its all-gathers have
// one order with the collectives of that group, those of a backward pass too.
std::unique_ptr<sharding::Collective> NewComparedCollective(
    const World& world, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const std::vector<int>& ranks, std::chrono::milliseconds timeout, const std::string& name);

// Returns the collective that this function made for the same ranks before, or else makes it with
// NewComparedCollective. It lives as long as the process. Returns null for a single rank.
// Collective: every rank of `ranks` calls this equally often.
sharding::Collective* SharedControlCollective(const World& world, const std::vector<int>& ranks,
                                              std::chrono::milliseconds timeout,
                                              const std::string& name);

// Does the same as NewControlCollective, but does not report all-gathers to the activity. Use it
// for a part of a collective that the activity already knows.
std::unique_ptr<sharding::Collective> NewUnwatchedCollective(const World& world,
                                                             const std::vector<int>& ranks,
                                                             std::chrono::milliseconds timeout,
                                                             const GroupPurpose& purpose);

// A guard over ranks of the run (see sharding/agreement/guard.h), with its own collective and with
// notes in the run's store.
//
//    RankGuard guard(world, {0, 1}, /*timeout_s=*/30);
//    absl::Status status = guard.Check("step 7", "kind=image", "train.lua:41");
class RankGuard {
 public:
  // Throws c10::ValueError if `timeout_s` is not from 0.001 to 604800, or if this rank is not in
  // `ranks`. Collective: every rank of `ranks` calls this equally often; the guards over one list
  // of ranks are numbered, and each number has its own notes.
  RankGuard(const World& world, const std::vector<int>& ranks, double timeout_s);

  // Does the same as Guard::Check, and names the check in the watchdog's reports. A rank alone
  // agrees with itself.
  absl::Status Check(const std::string& label, const std::string& fingerprint,
                     const std::string& place);

 private:
  std::shared_ptr<Activity> activity_;
  // Null in a group of one rank.
  std::unique_ptr<sharding::Collective> collective_;
  std::unique_ptr<sharding::StoreNotes> notes_;
  std::unique_ptr<sharding::Guard> guard_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_CONTROL_H_
