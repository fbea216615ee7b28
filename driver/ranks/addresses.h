// Chooses the address of this machine for sockets over the CPU: Gloo's and the control sockets.
//
// The machine's own name is not enough: Debian's installer maps it to 127.0.1.1, and other machines
// cannot reach a socket that listens there. So a rank uses its address on the way to the master.
// The ranks of the master's machine use their address on the way to a rank elsewhere.

#ifndef LOCKSTEP_DRIVER_RANKS_ADDRESSES_H_
#define LOCKSTEP_DRIVER_RANKS_ADDRESSES_H_

#include <string>
#include <vector>

#include "driver/ranks/world.h"

namespace lockstep::driver {

// Returns the addresses of the interfaces that GLOO_SOCKET_IFNAME lists, otherwise this machine's
// address towards MASTER_ADDR. Throws c10::Error if it finds no address.
std::vector<std::string> OwnAddresses(const RankEnvironment& environment);

// Fixes the addresses of this rank, `own`, for others to find in the store. Replaces a loopback
// address if a rank has another one; `of_ranks` are the first addresses of all ranks. Throws
// c10::Error if that rank cannot be reached.
void FixAddresses(const World& world, const std::vector<std::string>& own,
                  const std::vector<std::string>& of_ranks);

// Returns the addresses that this rank has fixed, as numbers. There are several if
// GLOO_SOCKET_IFNAME lists several: Gloo uses them in turn, control sockets use the first.
std::vector<std::string> SocketAddresses(const World& world);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_ADDRESSES_H_
