#include "driver/ranks/world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "driver/cuda/choose_gpu.h"
#include "driver/cuda/cuda_library.h"
#include "driver/cuda/nccl_backend.h"
#include "driver/network/bounded_store.h"
#include "driver/network/network.h"
#include "driver/ranks/addresses.h"
#include "driver/ranks/failure.h"
#include "driver/ranks/meeting.h"
#include "driver/ranks/mirror/mirror.h"
#include "driver/ranks/script_calls.h"
#include "driver/ranks/watched_backend.h"
#include "sharding/agreement/c10d_collective.h"
#include "sharding/agreement/guard.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace lockstep::driver {

// Returns what stands in front of Gloo in a group. Defined in the program of //tests/strict alone,
// where it is the backend that fails where NCCL would; the product has no such function.
c10::intrusive_ptr<c10d::Backend> WrapCpuBackend(c10::intrusive_ptr<c10d::Backend> gloo,
                                                 const std::string& group,
                                                 const std::vector<int>& ranks)
    __attribute__((weak));

namespace {

using c10d::ProcessGroup;

double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// Returns 0, 1, ... `size` - 1.
std::vector<int> Positions(int size) {
  std::vector<int> positions(static_cast<size_t>(size));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

std::vector<int> AllRanks(const World& world) { return Positions(world.environment.world_size); }

// Makes the store listen at `address` alone. By itself it would listen on every interface, where
// strangers could read the keys and end the run.
void ListenOnlyAt(const std::string& address, c10d::TCPStoreOptions& options) {
  const absl::StatusOr<int> fd = ListenOn(address, options.port);
  TORCH_CHECK(fd.ok(), std::string(fd.status().message()));
  options.masterListenFd = *fd;  // the store closes it
  options.port = PortOf(*fd);
}

// Keys of an attempt that torchrun or our launcher restarted must not be seen by the next. A store
// of rank 0 ends with its attempt. Then counts may differ: torchrun's agent that joined later
// counts fewer restarts than the others.
std::string PrefixOf(int attempt) { return absl::StrCat("attempt/", attempt); }

c10::intrusive_ptr<c10d::Store> NewStore(const RankEnvironment& environment,
                                         std::chrono::milliseconds timeout) {
  if (environment.mirrored || (environment.world_size == 1 && environment.master_port == 0)) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = environment.rank == 0 && !environment.store_is_hosted;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string where = absl::StrCat(environment.master_addr, ":", environment.master_port);
  c10::intrusive_ptr<c10d::Store> store;
  try {
    const std::string host = NumberOfLocalhost(environment.master_addr);
    if (options.isServer && IsLoopback(host)) ListenOnlyAt(host, options);
    store = NewBoundedStore(where, timeout, [host, options] {
      return c10::make_intrusive<c10d::TCPStore>(host, options);
    });
  } catch (const c10::Error& error) {
    if (options.isServer) {
      TORCH_CHECK(false, "cannot host the run's store at ", where,
                  " (MASTER_ADDR:MASTER_PORT); is the port taken? ",
                  error.what_without_backtrace());
    }
    TORCH_CHECK(false, "cannot reach the run's store at ", where,
                " (MASTER_ADDR:MASTER_PORT) within ", Seconds(timeout),
                " s; rank 0 must be running there, and --timeout sets how long to wait: ",
                error.what_without_backtrace());
  }
  // From here on ranks wait in the store for others: the watchdog must come first.
  store->setTimeout(timeout + kTimeToReport);
  return c10::make_intrusive<c10d::PrefixStore>(
      PrefixOf(environment.store_is_hosted ? environment.attempt : 0), store);
}

// Blocks until every rank has come here. Returns their addresses; `address` is this rank's own.
std::vector<std::string> WaitForRanks(const World& world, const std::string& address,
                                      std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  const Meeting meeting = MeetInStore(*world.store, "lockstep/here", world.environment.rank,
                                      AllRanks(world), address, timeout);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  TORCH_CHECK(meeting.absent.empty(), "waited ", absl::StrFormat("%.0f", waited.count()),
              " s for ranks that have not come: ", absl::StrJoin(meeting.absent, ", "), " of 0 to ",
              world.environment.world_size - 1,
              "; were they started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE? "
              "--timeout sets how long to wait");
  return meeting.values;
}

// Returns Gloo's devices for this rank's addresses, which all groups share. A device has a thread
// that polls its sockets all the time, even if nothing is sent.
const auto& GlooDevices(const World& world) {
  static const auto devices = [&world] {
    decltype(c10d::ProcessGroupGloo::Options::devices) made;
    for (const std::string& address : SocketAddresses(world))
      made.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    return made;
  }();
  return devices;
}

c10::intrusive_ptr<c10d::Backend> NewGloo(const World& world,
                                          const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = GlooDevices(world);
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  // Gloo returns when this rank is connected. A rank that ended now would break the connections
  // that others still make.
  const Meeting connected = MeetInStore(*store, "connected", rank, Positions(size), "", timeout);
  TORCH_CHECK(connected.absent.empty(), "a group of ", size, " ranks: at positions ",
              absl::StrJoin(connected.absent, ", "), " they have not connected within ",
              Seconds(timeout), " s");
  return gloo;
}

// Compares collectives over a Gloo group of their own.
WatchedBackend::Compare NewCompare(const World& world, const c10::intrusive_ptr<c10d::Store>& store,
                                   const std::vector<int>& ranks, int rank,
                                   std::chrono::milliseconds timeout) {
  struct Comparison {
    Comparison(const c10::intrusive_ptr<ProcessGroup>& group,
               const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout,
               const std::vector<int>& ranks)
        : collective(group),
          notes(store, "notes", group->getRank()),
          guard(&collective, &notes, Seconds(timeout), ranks) {}
    sharding::C10dCollective collective;
    sharding::StoreNotes notes;
    sharding::Guard guard;
  };
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, static_cast<int>(ranks.size()));
  group->setBackend(c10::kCPU, ProcessGroup::BackendType::GLOO,
                    NewGloo(world, store, rank, static_cast<int>(ranks.size()), timeout));
  const auto comparison = std::make_shared<Comparison>(group, store, timeout, ranks);
  return [comparison](const std::string& label, const std::string& fingerprint,
                      const std::string& place) {
    const absl::Status status = comparison->guard.Check(label, fingerprint, place);
    TORCH_CHECK(status.ok(), std::string(status.message()));
  };
}

std::string InBraces(const std::vector<int>& ranks) {
  return absl::StrCat("{", absl::StrJoin(ranks, ", "), "}");
}

std::vector<int> Sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Throws unless all members give the same list. A backend would wait for positions that nobody has.
void CheckSameList(const World& world, const std::string& name, const std::vector<int>& ranks,
                   std::chrono::milliseconds timeout) {
  const std::vector<int> members = Sorted(ranks);
  const std::string list = InBraces(ranks), place = world.activity->FindPlace();
  const std::string value = place.empty() ? list : absl::StrCat(list, " (", place, ")");
  const Meeting meeting = MeetInStore(*world.store, absl::StrCat(name, "/members"),
                                      world.environment.rank, members, value, timeout);
  TORCH_CHECK(meeting.absent.empty(),
              DescribeAbsence(absl::StrCat("group ", list), meeting, timeout));
  const auto is_same = [&](const std::string& other) {
    return other.compare(0, list.size(), list) == 0;
  };
  if (std::all_of(meeting.values.begin(), meeting.values.end(), is_same)) return;
  std::string text;
  for (size_t i = 0; i < members.size(); ++i)
    absl::StrAppend(&text, "\n  rank ", members[i], ": ", meeting.values[i]);
  TORCH_CHECK_VALUE(false, "the ranks of a group list its members differently:", text,
                    "\nEvery member gives the same ranks in the same order");
}

c10::intrusive_ptr<ProcessGroup> MakeMirroredGroup(const World& world, const std::string& name,
                                                   const c10::intrusive_ptr<c10d::Store>& store,
                                                   int rank, int size) {
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  const auto backend = NewMirrorBackend(rank, size);
  group->setBackend(c10::kCPU, ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  if (world.device.is_cuda()) {
    group->setBackend(c10::kCUDA, ProcessGroup::BackendType::NCCL, backend);
    group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
  }
  group->setGroupName(name);
  return group;
}

c10::intrusive_ptr<ProcessGroup> MakeGroup(const World& world, const std::string& name,
                                           const std::vector<int>& ranks, int rank,
                                           std::chrono::milliseconds timeout,
                                           const GroupPurpose& purpose) {
  const int size = static_cast<int>(ranks.size());
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, world.store);
  const auto part = [&store](const char* prefix) {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  const std::string title = TitleOf(world, ranks, purpose);
  if (world.environment.mirrored) return MakeMirroredGroup(world, name, store, rank, size);
  const auto backend_timeout = purpose.watched ? std::chrono::milliseconds(kNoTimeout) : timeout;
  const std::chrono::milliseconds limit = purpose.watched ? timeout : std::chrono::milliseconds(0);
  const UnderWay meeting(*world.activity,
                         {title, 0, "meeting of the group's ranks", world.activity->FindPlace(),
                          limit, AddMeetingSequence(*world.activity, name, ranks)});
  if (world.group != nullptr) CheckSameList(world, name, ranks, backend_timeout);
  // One comparison for both backends: their collectives have one order.
  WatchedBackend::Compare compare;
  if (world.debug_collectives && purpose.name.empty() && size > 1)
    compare = NewCompare(world, part("compare"), ranks, rank, timeout);
  std::shared_ptr<CallComparison> calls;
  if (compare == nullptr && purpose.name.empty() && size > 1)
    calls = std::make_shared<CallComparison>(world, ranks, backend_timeout, title);
  const auto watched = [&](const c10::intrusive_ptr<c10d::Backend>& backend,
                           WatchedBackend::WithoutTensors without_tensors = nullptr) {
    const std::string key = absl::StrCat(name, ", ", backend->getBackendName());
    return c10::make_intrusive<WatchedBackend>(backend, title, key, ranks, world.activity, limit,
                                               compare, calls, without_tensors);
  };
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  auto cpu = NewGloo(world, part("gloo"), rank, size, backend_timeout);
  if (WrapCpuBackend != nullptr) cpu = WrapCpuBackend(std::move(cpu), title, ranks);
  group->setBackend(c10::kCPU, ProcessGroup::BackendType::GLOO, watched(cpu));
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  if (world.device.is_cuda()) {
    const auto new_nccl = *static_cast<NewNcclBackend*>(CudaSymbol(kNewNcclBackendSymbol));
    group->setBackend(c10::kCUDA, ProcessGroup::BackendType::NCCL,
                      watched(new_nccl(part("nccl"), rank, size, backend_timeout),
                              *static_cast<NcclWorkAlone*>(CudaSymbol(kNcclWorkAloneSymbol))));
    group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
  }
  group->setGroupName(name);
  return group;
}

// Says once per machine what a GPU runs for which the kernels were not compiled.
void TellKernels(const RankEnvironment& environment) {
  if (environment.local_rank != 0) return;
  const auto op = c10::Dispatcher::singleton().findSchema({"lockstep::kernels_line_of_cuda", ""});
  const std::string line = op.has_value()
                               ? op->typed<std::string()>().call()
                               : "GPU: the program was built without nvcc; operators of ATen run";
  if (!line.empty()) std::fprintf(stderr, "lockstep: %s\n", line.c_str());
}

c10::Device ChooseDevice(const RankEnvironment& environment) {
  const int gpus = LocalGpuCount();
  if (gpus == 0) return c10::kCPU;
  const absl::StatusOr<int> gpu = ChooseGpu(environment, ProcessEnvironment(), gpus);
  TORCH_CHECK_VALUE(gpu.ok(), std::string(gpu.status().message()));
  CudaSymbol(kNewNcclBackendSymbol);
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(*gpu));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  TellKernels(environment);
  return device;
}

}  // namespace

int LocalGpuCount() {
  int devices = 0;
  std::error_code error;
  constexpr int kMaxDevices = 64;  // a container may see /dev/nvidia5 alone
  for (int i = 0; i < kMaxDevices; ++i) {
    if (std::filesystem::exists(absl::StrCat("/dev/nvidia", i), error)) ++devices;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr || devices == 0) return devices;
  int count = 0;
  for (const auto& name : absl::StrSplit(visible, ',', absl::SkipWhitespace())) {
    if (name == "-1") break;  // as CUDA reads it: what follows an invalid name is not seen
    ++count;
  }
  return count;
}

HostedStore HostStore(int attempt) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  ListenOnlyAt("127.0.0.1", options);
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const uint16_t port = store->getPort();
  return {c10::make_intrusive<c10d::PrefixStore>(PrefixOf(attempt), store), port};
}

std::string KnownRunDir(c10d::Store& store) {
  return store.check({kRunDirKey}) ? store.get_to_str(kRunDirKey) : "";
}

bool HasStrictBackend() { return WrapCpuBackend != nullptr; }

World JoinStore(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  World world;
  world.environment = environment;
  world.store = NewStore(environment, timeout);
  return world;
}

void MeetRanks(World& world, std::chrono::milliseconds time_to_start,
               std::chrono::milliseconds timeout) {
  const RankEnvironment& environment = world.environment;
  world.device = ChooseDevice(environment);
  world.backend = world.device.is_cuda() ? "nccl" : "gloo";
  if (environment.world_size > 1 && !environment.mirrored) {
    const std::vector<std::string> addresses = OwnAddresses(environment);
    FixAddresses(world, addresses, WaitForRanks(world, addresses.front(), time_to_start));
  }
  world.group = MakeGroup(world, "world", AllRanks(world), environment.rank, timeout, {});
}

std::string TitleOf(const World& world, const std::vector<int>& ranks,
                    const GroupPurpose& purpose) {
  const bool is_world = ranks == AllRanks(world);
  const std::string title = is_world ? "world" : absl::StrCat("ranks ", absl::StrJoin(ranks, ", "));
  if (!purpose.name.empty()) return absl::StrCat(title, " (", purpose.name, ")");
  if (purpose.number > (is_world ? 0 : 1))
    return absl::StrCat(title, " (group ", purpose.number, ")");
  return title;
}

int AddMeetingSequence(Activity& activity, const std::string& name, const std::vector<int>& ranks) {
  const std::string key = name + ", meeting";
  // Ranks meet under this name, so one that lacks it has not come.
  return activity.AddSequence({key, key, /*known=*/"", ranks});
}

int PositionIn(const World& world, const std::vector<int>& ranks) {
  TORCH_CHECK_VALUE(world.store != nullptr, kNoRanks);
  int position = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    TORCH_CHECK_VALUE(ranks[i] >= 0 && ranks[i] < world.environment.world_size, "group: rank ",
                      ranks[i], " is not one of the ranks 0 to ", world.environment.world_size - 1);
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK_VALUE(ranks[j] != ranks[i], "group: rank ", ranks[i], " is named twice");
    }
    if (ranks[i] == world.environment.rank) position = static_cast<int>(i);
  }
  TORCH_CHECK_VALUE(position >= 0, "group: rank ", world.environment.rank, " is not a member of {",
                    absl::StrJoin(ranks, ", "), "}");
  return position;
}

c10::intrusive_ptr<ProcessGroup> NewGroup(const World& world, const std::vector<int>& ranks,
                                          std::chrono::milliseconds timeout,
                                          const GroupPurpose& purpose) {
  const int position = PositionIn(world, ranks);
  // Members alone count how often a group of these ranks was asked for, so that others need not
  // take part.
  static std::map<std::vector<int>, int> times_made, times_numbered;
  const std::vector<int> members = Sorted(ranks);
  const std::string name =
      absl::StrCat("group/", absl::StrJoin(members, ","), "/", times_made[members]++);
  GroupPurpose numbered = purpose;
  if (purpose.name.empty()) numbered.number = ++times_numbered[members];
  return MakeGroup(world, name, ranks, position, timeout, numbered);
}

}  // namespace lockstep::driver
