// Marks the collectives that a script calls itself, and the end of the script, so that ranks can
// compare them.
//
// A collective that the script calls is compared before it begins: see
// sharding/agreement/call_order.h. Others, such as the Reducer's in a backward pass, are announced
// and compared later, so that they never wait.
//
// The all-gathers of the program's own libraries (the lockstep loop's, models.save's) are compared
// too. If one rank waits in models.save, its error says what the other ranks called instead.

#ifndef LOCKSTEP_DRIVER_RANKS_SCRIPT_CALLS_H_
#define LOCKSTEP_DRIVER_RANKS_SCRIPT_CALLS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "driver/ranks/activity.h"
#include "driver/ranks/world.h"
#include "sharding/agreement/collective.h"

namespace lockstep::driver {

// While this object lives, collectives of this thread count as the script's.
class ScriptCall {
 public:
  ScriptCall();
  ScriptCall(const ScriptCall&) = delete;
  ScriptCall& operator=(const ScriptCall&) = delete;
  ~ScriptCall();
};

// Compares the calls of a group's ranks. Thread: the thread that calls collectives.
class CallComparison {
 public:
  // `timeout` limits each wait, `title` is the group's name in messages. Collective: every rank of
  // `ranks` makes one, in the same order.
  CallComparison(const World& world, const std::vector<int>& ranks,
                 std::chrono::milliseconds timeout, const std::string& title);
  ~CallComparison();

  // Call it before this rank enters a collective. `is_one_place`: see CallOrder::Call. Throws
  // c10::Error if the ranks' calls differ.
  void Compare(const std::string& what, const std::string& place, bool is_one_place);

  // Counts a call that this rank has refused to make: see CallOrder::Refuse.
  void Refuse(const std::string& what, const std::string& place);

  // Tells the other ranks that this rank makes no more calls.
  void TellEnd();

  // Returns a collective whose all-gathers are compared as calls of `what`, or of
  // CollectiveSubject::Current(). It has the ranks and the timeout of this comparison.
  std::unique_ptr<sharding::Collective> NewGatherings(const std::string& what,
                                                      std::shared_ptr<Activity> activity);

  // Returns the comparison of the world's group if `ranks` are its ranks in their order, or null
  // if --debug-collectives compares the calls.
  static CallComparison* OfWorld(const std::vector<int>& ranks);

 private:
  class Gatherings;
  struct State;
  std::shared_ptr<State> state_;
};

// Returns how many calls of the script this rank has begun or refused so far. A function that fails
// without changing the number has not come to its call.
int64_t NumScriptCalls();

// Tells the other ranks of every group that this rank's script has ended.
void TellEndOfScript();

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_SCRIPT_CALLS_H_
