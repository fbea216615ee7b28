// Addresses of this machine and of others, for the sockets of a run.
//
//    absl::StatusOr<int> fd = ListenOn("127.0.0.1", /*port=*/0);  // the kernel chooses the port
//
// Thread-safe.

#ifndef LOCKSTEP_DRIVER_NETWORK_NETWORK_H_
#define LOCKSTEP_DRIVER_NETWORK_NETWORK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::driver {

// Returns whether `host` is a name or an address of the loopback interface by itself: "localhost",
// "127.0.0.1", "::1". Looks up no name.
bool IsLoopback(const std::string& host);

// Returns "127.0.0.1" for "localhost", and any other `host` as it is. A container may have no
// /etc/hosts that knows the name, which stands for loopback everywhere (RFC 6761, 6.3).
std::string NumberOfLocalhost(const std::string& host);

// Returns a socket that listens on `address` (numbers, IPv4 or IPv6) and closes on exec. The caller
// owns it. Port 0: the kernel chooses one; PortOf returns it. Errors: InvalidArgument where
// `address` is not numeric, Unavailable where this machine lacks it or the port is taken.
absl::StatusOr<int> ListenOn(const std::string& address, uint16_t port);

// Returns the port that a socket is bound to, 0 where it is not bound.
uint16_t PortOf(int fd);

// Returns this machine's address on the way to `host`, a name or numbers. Sends nothing. Prefers an
// address that other machines can reach, then IPv4. Errors: NotFound where nobody knows the name,
// Unavailable where there is no way.
absl::StatusOr<std::string> AddressTowards(const std::string& host);

// Returns the address of each interface in `names`, a list like "eth0,eth1": its first IPv4
// address, or its first IPv6 address that is not link-local. Error: NotFound, naming the interface.
absl::StatusOr<std::vector<std::string>> AddressesOfInterfaces(const std::string& names);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_NETWORK_NETWORK_H_
