// Marks functions that run a second time in backward, so that what must happen once can refuse.
//
// The failure this prevents. A checkpointed region sends rows to another rank. Backward runs the
// region again, and it sends the rows again, but the other rank expects them once. The ranks then
// wait for each other until a timeout, or the next call receives the wrong rows.
//
//    const RunsAgainScope scope("checkpoint region train.lua:41");  // around each run
//    ...
//    CheckRunsOnce("a call of bridge vision -> language");          // in the run: throws
//
// Use it for messages between two ranks. A collective that all ranks call in the same function is
// no problem: they all run it again, in the same order.
//
// Thread: acts on the calling thread.

#ifndef LOCKSTEP_BASE_TORCH_RUNS_AGAIN_H_
#define LOCKSTEP_BASE_TORCH_RUNS_AGAIN_H_

#include <string>
#include <utility>

#include "c10/util/Exception.h"

namespace lockstep::base {

class RunsAgainScope {
 public:
  // `name` stands for the function in errors.
  explicit RunsAgainScope(std::string name)
      : name_(std::move(name)), outer_(std::exchange(innermost_, this)) {}
  RunsAgainScope(const RunsAgainScope&) = delete;
  RunsAgainScope& operator=(const RunsAgainScope&) = delete;
  ~RunsAgainScope() { innermost_ = outer_; }

 private:
  friend void CheckRunsOnce(const std::string& what);
  static inline thread_local const RunsAgainScope* innermost_ = nullptr;
  const std::string name_;
  const RunsAgainScope* const outer_;
};

// Throws c10::ValueError inside a RunsAgainScope. `what` begins the message.
inline void CheckRunsOnce(const std::string& what) {
  const RunsAgainScope* const scope = RunsAgainScope::innermost_;
  TORCH_CHECK_VALUE(scope == nullptr, what, " is not possible inside a ", scope->name_,
                    ", which runs again in backward, while the other rank takes part once; make "
                    "the call outside of it, and pass the result as an argument");
}

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_RUNS_AGAIN_H_
