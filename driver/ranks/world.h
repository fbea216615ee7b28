// The ranks of a run and how they reach each other: the store, the process groups, the device.
//
// This is the driver's one file over c10d's backends: Gloo on the CPU, and where the rank has a GPU
// also NCCL, out of a library that is loaded only then (see nccl_backend.cc). A process group holds
// both: a collective goes to the backend of its tensors' device.

#ifndef LOCKSTEP_DRIVER_RANKS_WORLD_H_
#define LOCKSTEP_DRIVER_RANKS_WORLD_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "driver/launch/environment.h"
#include "driver/ranks/activity.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// GPUs that this process may use: those of the machine, cut by CUDA_VISIBLE_DEVICES. Counts device
// files, so that asking loads no driver.
int LocalGpuCount();

// A TCP store that this process hosts on 127.0.0.1, at a port that the kernel chose.
struct HostedStore {
  c10::intrusive_ptr<c10d::Store> store;
  uint16_t port = 0;
};
HostedStore HostStore();

struct World {
  RankEnvironment environment;
  c10::Device device = c10::kCPU;
  std::string backend;  // "gloo" or "nccl": what tensors on `device` travel by
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // of all ranks; null until they have met
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  bool debug_collectives = false;  // ranks compare each collective before they enter it
};

// Reaches the run's store, through which ranks tell each other of failures, from here on. Throws
// c10::Error where nobody hosts it within `timeout`. A run of one rank needs no port and no
// network.
World JoinStore(const RankEnvironment& environment, std::chrono::milliseconds timeout);

// Meets the other ranks: chooses the device, makes the group of all. Collective: every rank of the
// run calls this once, first. `timeout` bounds the meeting and every later collective. Throws
// c10::Error that names the ranks that stay away, or where no backend can be made.
void MeetRanks(World& world, std::chrono::milliseconds timeout);

// What a group is for.
struct GroupPurpose {
  std::string name;     // "", or what reports call it beside its ranks: "sharding.lockstep"
  bool watched = true;  // its collectives have the limit that `timeout` sets
};

// "world", or "ranks 0, 2", and what the group is for: as reports name it.
std::string TitleOf(const World& world, const std::vector<int>& ranks, const GroupPurpose& purpose);

// Where this rank stands among `ranks`. Throws c10::ValueError where it is not there, or where they
// are no ranks of the world, each once.
int PositionIn(const World& world, const std::vector<int>& ranks);

// What waits for other ranks waits this much longer than the watchdog, which knows more of a hang.
inline constexpr std::chrono::seconds kTimeToReport(15);

// The group of `ranks`, in that order, for this rank, which must be among them. Collective: every
// rank of `ranks` calls this equally often; the others need not. Groups with a purpose are this
// program's own: their collectives are not compared.
c10::intrusive_ptr<c10d::ProcessGroup> NewGroup(const World& world, const std::vector<int>& ranks,
                                                std::chrono::milliseconds timeout,
                                                const GroupPurpose& purpose = {});

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WORLD_H_
