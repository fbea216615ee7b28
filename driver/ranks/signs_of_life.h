// Finds ranks that are stopped, dead or out of reach where no other rank waits for them in a
// collective: after the last collective the run would wait forever for their end.
//
//    GiveSignsOfLife(store, rank, timeout / 10);  // each rank
//
//    // in the process that waits for the last ranks
//    Silence silence(timeout);
//    while (...) {
//      if (auto text = silence.Look(*store, ranks_that_run, Clock::now())) Fail(*text);
//      ...  // waits for silence.between_looks() at most
//    }
//
// A rank that computes gives signs of life, so it may work for as long as it likes.

#ifndef LOCKSTEP_DRIVER_RANKS_SIGNS_OF_LIFE_H_
#define LOCKSTEP_DRIVER_RANKS_SIGNS_OF_LIFE_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// Writes to the store that this rank's process runs: now, and once in `interval`. The thread that
// does so lives until the process ends. Throws StoreIsSilent, or c10::Error if the store is lost.
void GiveSignsOfLife(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                     std::chrono::milliseconds interval);

// Returns "process 4711 on node3" for a rank that has given a sign of life, otherwise "".
std::string DescribeProcessOf(c10d::Store& store, int rank);

// Measures how long ranks have given no sign of life. Not thread-safe.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Silence(std::chrono::milliseconds limit) : limit_(limit) {}

  // Returns the time from one look to the next. A call before that returns nothing. A longer time
  // counts as this: this process was stopped, with the whole run perhaps.
  std::chrono::milliseconds between_looks() const { return limit_ / 20; }

  // Returns a message that names each of `ranks` that has given no sign of life for longer than the
  // limit, and its machine. Does not count the time before a rank's first sign.
  std::optional<std::string> Look(c10d::Store& store, const std::vector<int>& ranks,
                                  Clock::time_point now);

 private:
  struct Seen {
    std::string sign;
    Clock::duration silent_for{0};
  };

  const std::chrono::milliseconds limit_;
  Clock::time_point last_look_;
  std::map<int, Seen> seen_;  // by rank
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_SIGNS_OF_LIFE_H_
