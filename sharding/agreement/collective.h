// Gathers a few bytes from all ranks: the only communication that the agreements of this library
// need.
//
// The core uses no network itself. These implement the interface:
//
//    - SocketCollective (socket_collective.h) over TCP sockets: fast enough for every step.
//    - C10dCollective (c10d_collective.h) over a c10d process group.
//    - RunAsThreads (thread_collective.h) over threads of one process, for tests.
//
// SocketCollective also moves larger memory between ranks, behind a message: see GatherWithParts.
//
// To gather texts of different lengths, see gather_texts.h.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_
#define LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

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

  // Memory that GatherWithParts reads and writes, by position. The pieces of one rank travel one
  // behind the other. The own position has none. Empty vectors: nothing travels behind the
  // messages.
  struct Parts {
    std::vector<std::vector<absl::Span<const char>>> to;
    std::vector<std::vector<absl::Span<char>>> from;
  };

  // Returns whether GatherWithParts works: the same on every rank of the group.
  virtual bool CanMoveParts() const { return false; }

  // Sends `message` to every rank and `parts.to` behind it. Blocks until the messages and parts of
  // all ranks have come, and returns the messages in the order of ranks. If all of them are equal,
  // `parts.from` holds the ranks' parts. Otherwise it holds undefined bytes.
  //
  // Returns FailedPrecondition if a rank sent an equal message with a part of another size.
  // Collective, in one order with StartAllGather: every rank gives a message of the same size, and
  // may give other parts if its message is another one.
  virtual absl::StatusOr<std::vector<std::string>> GatherWithParts(const std::string& message,
                                                                   const Parts& parts) {
    static_cast<void>(message), static_cast<void>(parts);
    return absl::UnimplementedError("this collective moves messages alone");
  }
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_
