// The ranks of a run and their connections: the store, the process groups, the device.
//
// Only this file makes c10d's backends: Gloo on the CPU, and NCCL if the rank has a GPU. NCCL comes
// from a library that is loaded only then (see nccl_backend.cc). A process group holds both
// backends: a collective uses the backend of its tensors' device.

#ifndef LOCKSTEP_DRIVER_RANKS_WORLD_H_
#define LOCKSTEP_DRIVER_RANKS_WORLD_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "driver/ranks/activity.h"
#include "driver/settings/environment.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// Returns the number of GPUs that this process may use: the machine's GPUs, limited by
// CUDA_VISIBLE_DEVICES. Counts device files, so it loads no driver.
int LocalGpuCount();

// A TCP store that this process hosts on 127.0.0.1, at a port that the kernel chose. `attempt`: how
// often the launcher has restarted the ranks, as RankEnvironment::attempt.
struct HostedStore {
  c10::intrusive_ptr<c10d::Store> store;
  uint16_t port = 0;
};
HostedStore HostStore(int attempt);

// The key in the run's store under which rank 0 leaves the path of the run's folder.
inline constexpr char kRunDirKey[] = "lockstep/run_dir";
// Returns the path of the run's folder; "" if rank 0 has not chosen one yet.
std::string KnownRunDir(c10d::Store& store);

struct World {
  RankEnvironment environment;
  c10::Device device = c10::kCPU;
  std::string backend;  // "gloo" or "nccl": sends tensors on `device`
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // of all ranks; null before MeetRanks
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  bool debug_collectives = false;  // ranks compare each collective before it runs
};

// Connects to the run's store, through which ranks report failures. Throws c10::Error if no process
// hosts it within `timeout`. A run of one rank needs no port and no network.
World JoinStore(const RankEnvironment& environment, std::chrono::milliseconds timeout);

// Chooses the device and makes the group of all ranks. `time_to_start` limits the wait for ranks
// that have not started, and `timeout` every collective. Throws c10::Error with the ranks that stay
// away, or if no backend can be made. Collective: every rank of the run calls this once, first.
void MeetRanks(World& world, std::chrono::milliseconds time_to_start,
               std::chrono::milliseconds timeout);

// The error for a World without a store and a group, as a thread has that prepares data.
inline constexpr char kNoRanks[] =
    "ranks talk to each other on the script's own thread alone; a worker of data.loader cannot "
    "call "
    "a collective or make a group";

// Returns whether this is the program of //tests/strict, whose CPU groups fail where NCCL would.
bool HasStrictBackend();

// The purpose of a group.
struct GroupPurpose {
  std::string name;     // "", or a name for reports: "sharding.lockstep"
  bool watched = true;  // whether its collectives have `timeout` as their limit
  int number = 0;       // from 1, of groups without a name among the same ranks; 0: the run's own
};

// Returns the group's name in reports: "world" or "ranks 0, 2", with its purpose. Different groups
// of dist.group have different names: "ranks 0, 2 (group 2)", "ranks 2, 0", "world (group 1)".
std::string TitleOf(const World& world, const std::vector<int>& ranks, const GroupPurpose& purpose);

// Adds a sequence of one call, the meeting of `ranks` under a name in the run's store.
int AddMeetingSequence(Activity& activity, const std::string& name, const std::vector<int>& ranks);

// Returns this rank's position in `ranks`. Throws c10::ValueError if it is not in the list, or if
// the list is not of different ranks of the world.
int PositionIn(const World& world, const std::vector<int>& ranks);

// Extra time for waits that the watchdog also limits: the watchdog reports a hang first, because it
// knows more.
inline constexpr std::chrono::seconds kTimeToReport(15);

// Makes the group of `ranks`, in that order; this rank must be in it. Groups with a purpose are the
// program's own, and their collectives are not compared. Throws c10::ValueError on every rank if
// the ranks give other orders, and c10::Error if the script of one has ended. Collective: every
// rank of `ranks` calls this equally often; the others need not.
c10::intrusive_ptr<c10d::ProcessGroup> NewGroup(const World& world, const std::vector<int>& ranks,
                                                std::chrono::milliseconds timeout,
                                                const GroupPurpose& purpose = {});

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WORLD_H_
