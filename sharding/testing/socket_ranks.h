// Ranks as threads of one process that are connected over real sockets, for tests.

#ifndef LOCKSTEP_SHARDING_TESTING_SOCKET_RANKS_H_
#define LOCKSTEP_SHARDING_TESTING_SOCKET_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sharding/agreement/socket_collective.h"

namespace lockstep::sharding {

using CollectivePointer = std::unique_ptr<SocketCollective>;

// Runs `body` at each position of a group, on threads, and returns when all have ended. `ranks` are
// the group's ranks of the world; empty: 0 to size - 1. `timeouts` are those of the ranks, and the
// last one holds for all ranks after it.
void RunSocketRanks(int size,
                    const std::function<void(int position, CollectivePointer collective)>& body,
                    const std::vector<absl::Duration>& timeouts = {absl::Seconds(20)},
                    const std::vector<int>& ranks = {}, const std::string& address = "127.0.0.1",
                    int most_at_once = SocketCollective::kMostAtOnce);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_TESTING_SOCKET_RANKS_H_
