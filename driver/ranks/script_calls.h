// Collectives that a script calls, and the end of the script: what ranks compare by default.
//
// A collective of the script is compared before it is entered: see sharding/agreement/call_order.h.
// Others, such as the Reducer's in a backward pass, are announced and compared later, so that they
// wait for nothing more.

#ifndef LOCKSTEP_DRIVER_RANKS_SCRIPT_CALLS_H_
#define LOCKSTEP_DRIVER_RANKS_SCRIPT_CALLS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "driver/ranks/world.h"

namespace lockstep::driver {

// While this lives, collectives of this thread are the script's.
class ScriptCall {
 public:
  ScriptCall();
  ScriptCall(const ScriptCall&) = delete;
  ScriptCall& operator=(const ScriptCall&) = delete;
  ~ScriptCall();
};

// The calls of a group's ranks. Thread: the one that calls collectives.
class CallComparison {
 public:
  // Collective: every rank of `ranks` makes one, in the same order. `timeout` bounds each wait.
  CallComparison(const World& world, const std::vector<int>& ranks,
                 std::chrono::milliseconds timeout);
  ~CallComparison();

  // Before this rank enters a collective. `is_one_place`: see CallOrder::Call. Throws c10::Error
  // where the ranks' calls differ.
  void Compare(const std::string& what, const std::string& place, bool is_one_place);

  // Tells the other ranks that this rank will call no more.
  void TellEnd();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Tells the other ranks of every group that this rank's script has ended.
void TellEndOfScript();

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_SCRIPT_CALLS_H_
