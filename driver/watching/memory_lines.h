// Which lines of a script hold a device's memory.
//
//   MemoryByLine report;
//   {
//     MemoryTracker tracker(at::kCPU, lua::RunningScriptLine);
//     train_one_step();
//     report = tracker.Report();
//   }
//
// An allocation belongs to the line that runs when it is made: also what autograd saves for
// backward, gradients (the line of x:backward()) and workspaces, of which Lua knows nothing. Sees
// what libtorch's allocators report to profilers: memory that this thread takes, and frees,
// while the tracker lives. Costs nothing while there is none, then a walk over Lua's stack for each
// allocation. Trackers may nest; a trace (driver/watching/trace.h) and a tracker may not, since
// libtorch has one place per thread for what watches it. Thread: made and destroyed, the inner one
// first, on the one that it watches.

#ifndef LOCKSTEP_DRIVER_WATCHING_MEMORY_LINES_H_
#define LOCKSTEP_DRIVER_WATCHING_MEMORY_LINES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10/core/DeviceType.h"

namespace c10 {
class DebugInfoGuard;
}

namespace lockstep::driver {

struct LineMemory {
  std::string place;  // "train.lua:12"; "" where no script ran
  int64_t bytes = 0;
  int64_t count = 0;  // of allocations
};

struct MemoryByLine {
  int64_t peak_bytes = 0;        // most that was held at once of what was allocated meanwhile
  std::vector<LineMemory> peak;  // who held it then, the most first
  int64_t held_bytes = 0;
  std::vector<LineMemory> held;  // who holds what is left, the most first
};

class MemoryTracker {
 public:
  // Throws c10::Error where a trace of this thread is under way.
  MemoryTracker(c10::DeviceType device, std::function<std::string()> find_place);
  MemoryTracker(const MemoryTracker&) = delete;
  MemoryTracker& operator=(const MemoryTracker&) = delete;
  ~MemoryTracker();

  MemoryByLine Report() const;

 private:
  class Allocations;

  std::shared_ptr<Allocations> allocations_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_MEMORY_LINES_H_
