#include "driver/control.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "c10/util/Exception.h"
#include "driver/activity.h"
#include "driver/failure.h"
#include "driver/mirror.h"
#include "sharding/c10d_collective.h"
#include "sharding/socket_collective.h"

namespace lockstep::driver {
namespace {

constexpr size_t kMaxRanksOnSockets = 64;

std::string InNumbers(const sockaddr* address) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  return text;
}

std::string AddressOfInterface(const std::string& name) {
  ifaddrs* interfaces = nullptr;
  TORCH_CHECK(getifaddrs(&interfaces) == 0, "cannot list this machine's network interfaces");
  std::string found;
  for (const ifaddrs* i = interfaces; i != nullptr && found.empty(); i = i->ifa_next) {
    if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET && name == i->ifa_name)
      found = InNumbers(i->ifa_addr);
  }
  freeifaddrs(interfaces);
  TORCH_CHECK(!found.empty(), "GLOO_SOCKET_IFNAME names \"", name,
              "\", an interface that this machine lacks or that has no IPv4 address");
  return found;
}

// This machine's address on the way to `host`. Asking sends nothing.
std::string AddressTowards(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), "9", &hints, &found);
  TORCH_CHECK(error == 0, "cannot look up ", host, " (MASTER_ADDR): ", gai_strerror(error));
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool fine = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  TORCH_CHECK(fine, "there is no way from this machine to ", host, " (MASTER_ADDR)");
  return InNumbers(reinterpret_cast<const sockaddr*>(&own));
}

std::string OwnAddress(const World& world) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr) return AddressOfInterface(interface);
  return AddressTowards(world.environment.master_addr);
}

// Through the run's store.
sharding::SocketCollective::Exchange ExchangeThrough(const World& world, const std::string& prefix,
                                                     size_t position, const std::vector<int>& ranks,
                                                     const std::string& title,
                                                     std::chrono::milliseconds timeout) {
  return [store = world.store, prefix, position, ranks, title,
          timeout](const std::string& own) -> absl::StatusOr<std::vector<std::string>> {
    std::vector<std::string> keys;
    for (size_t i = 0; i < ranks.size(); ++i) keys.push_back(absl::StrCat(prefix, "/", i));
    store->set(keys[position], std::vector<uint8_t>(own.begin(), own.end()));
    try {
      store->wait(keys, timeout);
    } catch (const c10::Error&) {
      std::vector<int> absent;
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (!store->check({keys[i]})) absent.push_back(ranks[i]);
      }
      if (absent.empty()) throw;
      return absl::DeadlineExceededError(absl::StrCat(
          "meeting of ", title, ": waited ", absl::FormatDuration(absl::FromChrono(timeout)),
          " for ranks that have not come: ", absl::StrJoin(absent, ", ")));
    }
    std::vector<std::string> all;
    for (const std::string& key : keys) all.push_back(store->get_to_str(key));
    return all;
  };
}

// Tells the rank's activity of each gathering, from when this rank waits in it: between its start
// and the wait lies a step of any length, and a loop that is left early never waits.
class WatchedCollective : public sharding::Collective {
 public:
  WatchedCollective(std::unique_ptr<sharding::Collective> collective, std::string title,
                    std::shared_ptr<Activity> activity, std::chrono::milliseconds limit)
      : collective_(std::move(collective)),
        title_(std::move(title)),
        activity_(std::move(activity)),
        limit_(limit) {}

  int rank() const override { return collective_->rank(); }
  int size() const override { return collective_->size(); }

  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    return std::make_unique<Watched>(*activity_,
                                     CollectiveCall{title_, ++calls_, "agreement", "", limit_},
                                     collective_->StartAllGather(bytes));
  }

 private:
  class Watched : public Pending {
   public:
    Watched(Activity& activity, CollectiveCall call, std::unique_ptr<Pending> pending)
        : activity_(activity), call_(std::move(call)), pending_(std::move(pending)) {}

    absl::StatusOr<std::vector<std::string>> Wait() override {
      call_.place = activity_.FindPlace();
      const UnderWay waiting(activity_, call_);
      return pending_->Wait();
    }

   private:
    Activity& activity_;
    CollectiveCall call_;
    std::unique_ptr<Pending> pending_;
  };

  std::unique_ptr<sharding::Collective> collective_;
  std::string title_;
  std::shared_ptr<Activity> activity_;
  std::chrono::milliseconds limit_;
  int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<sharding::Collective> NewControlCollective(const World& world,
                                                           const std::vector<int>& ranks,
                                                           std::chrono::milliseconds timeout,
                                                           const GroupPurpose& purpose) {
  const int position = PositionIn(world, ranks);
  if (world.environment.mirrored)
    return NewMirrorCollective(position, static_cast<int>(ranks.size()));
  const std::string title = TitleOf(world, ranks, purpose);
  // Members alone count how often this list was asked for, so that others need not take part.
  static std::map<std::vector<int>, int> times_made;
  const std::string prefix =
      absl::StrCat("control/", absl::StrJoin(ranks, ","), "/", times_made[ranks]++);
  const std::chrono::milliseconds limit = purpose.watched ? timeout : std::chrono::milliseconds(0);
  const std::chrono::milliseconds longest = purpose.watched ? kNoTimeout : timeout;
  // Watched from the wait on, by WatchedCollective below, and not from the start as a group's are.
  if (ranks.size() > kMaxRanksOnSockets) {
    auto over_gloo = std::make_unique<sharding::C10dCollective>(
        NewGroup(world, ranks, longest, {purpose.name, /*watched=*/false}));
    return std::make_unique<WatchedCollective>(std::move(over_gloo), title, world.activity, limit);
  }
  const UnderWay meeting(*world.activity, {title, 0, "meeting of the group's ranks",
                                           world.activity->FindPlace(), limit});
  auto collective = sharding::SocketCollective::Connect(
      position, static_cast<int>(ranks.size()), OwnAddress(world),
      ExchangeThrough(world, prefix, static_cast<size_t>(position), ranks, title, longest),
      absl::FromChrono(longest), ranks);
  TORCH_CHECK(collective.ok(), std::string(collective.status().message()));
  return std::make_unique<WatchedCollective>(*std::move(collective), title, world.activity, limit);
}

}  // namespace lockstep::driver
