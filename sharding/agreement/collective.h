// Gathers a few bytes from all ranks: the only communication that the agreements of this library
// need.
//
// The core uses no network itself. These implement the interface:
//
//    - SocketCollective (socket_collective.h) over TCP sockets: fast enough for every step.
//    - C10dCollective (c10d_collective.h) over a c10d process group.
//    - RunAsThreads (thread_collective.h) over threads of one process, for tests.
//
// To gather texts of different lengths, see gather_texts.h.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_
#define LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::sharding {

// A group of ranks. Thread: one thread of each rank uses it.
class Collective {
 public:
  // A gathering that has started.
  class Pending {
   public:
    virtual ~Pending() = default;
    // Blocks until all ranks have come. Returns their bytes in the order of ranks. Call it once.
    // Returns an error if a rank is lost or the collective's timeout passes.
    virtual absl::StatusOr<std::vector<std::string>> Wait() = 0;
  };

  virtual ~Collective() = default;
  // Return this rank's position in the group, and the number of ranks.
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns the world rank at a position of the group, as messages name it. The default suits a
  // group of all ranks in their order.
  virtual int WorldRank(int position) const { return position; }

  // Starts a gathering and returns at once. Several may be in progress. Collective: every rank
  // calls this equally often, in the same order, with the same number of bytes.
  virtual std::unique_ptr<Pending> StartAllGather(const std::string& bytes) = 0;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_
