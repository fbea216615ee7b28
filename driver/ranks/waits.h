// Finds ranks that wait for each other forever, a moment after it has happened.
//
// The failure that this names. Rank 0 is in the script's all_reduce, rank 1 in the forward pass of
// a sharded model. Calls of one group are compared before they begin; these are in two groups, and
// each rank waits in its own. Nothing is wrong with either call, so only --timeout would end this.
//
//    // Each rank whose script has waited for a second (wait_watch.cc):
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
  std::string awaited;  // key of the sequence that the other ranks must reach
  int64_t number = 0;   // of the call in that sequence
  // Key of a sequence, or "". Another rank may list no call of `awaited`. Then it counts as late if
  // it lists this sequence, or if this is "". So ranks that number their groups differently find no
  // circle.
  std::string known;
  std::vector<int> ranks;               // of the run, that must come; may contain this rank
  std::string text;                     // "all_reduce float32 {4} of world (train.lua:9)"
  std::map<std::string, int64_t> come;  // by key, the last call that this rank has begun
};

std::string FormatWait(const RankWait& wait);
// Returns nothing if the text is not one of FormatWait.
std::optional<RankWait> ParseWait(const std::string& text);

// Returns ranks that wait for each other in a circle: each for the next one, and the last for the
// first. Returns {} if no ranks do. waits[r] is the wait of rank r; nullopt if it does not wait.
std::vector<int> FindCircle(const std::vector<std::optional<RankWait>>& waits);

// Returns a sentence that names each rank of the circle, and the call in which it waits.
std::string DescribeWaits(const std::vector<int>& circle,
                          const std::vector<std::optional<RankWait>>& waits);

// Returns a circle as FindCircle does. awaited[r] lists the ranks that rank r waits for.
std::vector<int> FindCircleIn(const std::vector<std::vector<int>>& awaited);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WAITS_H_
