// What the agreements of this library need of a group of ranks: to gather a few bytes from all.
//
// The core knows no network. c10d_collective.h carries it over a process group; tests carry it over
// threads (thread_collective.h).

#ifndef LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_
#define LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::sharding {

// Thread: used by one thread of each rank.
class Collective {
 public:
  // A gathering under way.
  class Pending {
   public:
    virtual ~Pending() = default;
    // Blocks until all ranks have come; returns their bytes in the order of ranks. Called once. An
    // error where a rank is lost or the collective's timeout passes.
    virtual absl::StatusOr<std::vector<std::string>> Wait() = 0;
  };

  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns the rank of the world at a position of the group, as messages name it. A group of all
  // ranks in their order needs no other than this one.
  virtual int WorldRank(int position) const { return position; }

  // Collective: every rank calls this equally often, in the same order, with equally many bytes.
  // Starts and returns at once; several may be under way.
  virtual std::unique_ptr<Pending> StartAllGather(const std::string& bytes) = 0;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_COLLECTIVE_H_
