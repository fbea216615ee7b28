#include "driver/ranks/addresses.h"

#include <cstdint>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "c10/util/Exception.h"
#include "driver/network/network.h"

namespace lockstep::driver {
namespace {

constexpr char kOneHost[] = "127.0.0.1";

// "" where the user leaves the choice to us.
std::string InterfacesToUse() {
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  return interfaces == nullptr ? "" : interfaces;
}

std::string AddressesKey(int rank) { return absl::StrCat("lockstep/addresses/", rank); }

}  // namespace

std::vector<std::string> OwnAddresses(const RankEnvironment& environment) {
  const std::string interfaces = InterfacesToUse();
  if (!interfaces.empty()) {
    const auto chosen = AddressesOfInterfaces(interfaces);
    TORCH_CHECK(chosen.ok(), "GLOO_SOCKET_IFNAME: ", std::string(chosen.status().message()));
    return *chosen;
  }
  const absl::StatusOr<std::string> address = AddressTowards(environment.master_addr);
  TORCH_CHECK(address.ok(), "MASTER_ADDR: ", std::string(address.status().message()));
  return {*address};
}

void FixAddresses(const World& world, const std::vector<std::string>& own,
                  const std::vector<std::string>& of_ranks) {
  const RankEnvironment& environment = world.environment;
  std::vector<std::string> settled = own;
  const bool is_master_here = IsLoopback(own.front()) && InterfacesToUse().empty();
  const bool may_be_elsewhere = is_master_here && !IsLoopback(environment.master_addr);
  for (int rank = 0; may_be_elsewhere && rank < environment.world_size; ++rank) {
    const std::string& other = of_ranks[static_cast<size_t>(rank)];
    if (IsLoopback(other)) continue;
    const absl::StatusOr<std::string> address = AddressTowards(other);
    TORCH_CHECK(address.ok(), "rank ", rank, ": ", std::string(address.status().message()),
                "; GLOO_SOCKET_IFNAME names the interface to use");
    settled = {*address};
    break;
  }
  world.store->set(AddressesKey(environment.rank), absl::StrJoin(settled, ","));
}

std::vector<std::string> SocketAddresses(const World& world) {
  const RankEnvironment& environment = world.environment;
  if (environment.world_size == 1) return {kOneHost};
  return absl::StrSplit(world.store->get_to_str(AddressesKey(environment.rank)), ',');
}

}  // namespace lockstep::driver
