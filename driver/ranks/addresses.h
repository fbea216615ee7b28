// Which of its machine's addresses a rank uses for sockets over the CPU: Gloo's and the control
// sockets.
//
// The machine's own name tells too little: Debian's installer maps it to 127.0.1.1, and a socket
// that listens there is out of reach for other machines. So a rank asks for its address on the way
// to the master, and the ranks of the master's machine for theirs on the way to a rank elsewhere.

#ifndef LOCKSTEP_DRIVER_RANKS_ADDRESSES_H_
#define LOCKSTEP_DRIVER_RANKS_ADDRESSES_H_

#include <string>
#include <vector>

#include "driver/ranks/world.h"

namespace lockstep::driver {

// The key of the store that a rank sets when it has come, to its address.
std::string HereKey(int rank);

// Returns the addresses of the interfaces that GLOO_SOCKET_IFNAME lists, otherwise this machine's
// address towards MASTER_ADDR. Throws c10::Error where there is none.
std::vector<std::string> OwnAddresses(const RankEnvironment& environment);

// Settles the addresses of this rank once every rank has set its key: replaces a loopback address
// of `own` where a rank has another. Throws c10::Error where there is no way to that rank.
void AgreeOnAddresses(const World& world, const std::vector<std::string>& own);

// Returns the addresses that this rank has settled on, in numbers. There are several where
// GLOO_SOCKET_IFNAME lists several: Gloo takes turns, control sockets take the first.
std::vector<std::string> SocketAddresses(const World& world);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_ADDRESSES_H_
