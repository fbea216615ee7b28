// Finds ranks that wait for each other forever, a moment after it has happened.
//
// The failure that this names. Rank 0 is in the script's all_reduce, rank 1 in the forward pass of
// a sharded model. Calls of one group are compared before they begin; these are in two groups, and
// each rank waits in its own. Nothing is wrong with either call, so only --timeout would end this.
//
//    // Each rank, as its script has waited for a second (rank.cc):
//    store.set("lockstep/wait/0", FormatWait(wait));
//    // One rank reads all of them:
//    std::vector<int> circle = FindCircle(waits);                  // {0, 1}
//    std::string text = DescribeWaits(circle, waits);
//    // "rank 0 waits for rank 1 in all_reduce {3} of world (train.lua:9); rank 1 waits ..."
//
// It costs nothing until a wait is old. A circle is a proof if each of its ranks was in its wait
// all the time while the waits were read: see WaitWatch in wait_watch.h.

#ifndef LOCKSTEP_DRIVER_RANKS_WAITS_H_
#define LOCKSTEP_DRIVER_RANKS_WAITS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::driver {

// The call in which a rank's script waits, and how far the rank has come in all sequences of calls.
// A sequence is the calls of one group, or the messages from one rank to another; its key is the
// same on all ranks.
struct RankWait {
  std::string awaited;  // the sequence in which the other ranks must come
  int64_t number = 0;   // to this number of it
  // A sequence that a rank must have for its absence from `awaited` to mean that it has not come.
  // "": none. Ranks that have counted the groups they made differently then find no circle.
  std::string known;
  std::vector<int> ranks;               // of the run: those that must come, perhaps with this one
  std::string text;                     // "all_reduce float32 {4} of world (train.lua:9)"
  std::map<std::string, int64_t> come;  // the highest number that this rank has begun, by key
};

std::string FormatWait(const RankWait& wait);
// Returns nothing if the text is not one of FormatWait.
std::optional<RankWait> ParseWait(const std::string& text);

// Returns ranks of which each waits for the next, and the last for the first; {} if there are none.
// waits[r]: that of rank r, or nothing while its script does not wait.
std::vector<int> FindCircle(const std::vector<std::optional<RankWait>>& waits);

std::string DescribeWaits(const std::vector<int>& circle,
                          const std::vector<std::optional<RankWait>>& waits);

// Returns the same for awaited[r]: the ranks for which rank r waits.
std::vector<int> FindCircleIn(const std::vector<std::vector<int>>& awaited);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WAITS_H_
