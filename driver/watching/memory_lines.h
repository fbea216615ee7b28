// Attributes a device's memory to lines of a script.
//
//    MemoryByLine report;
//    {
//      MemoryTracker tracker(at::kCPU, lua::RunningScriptLine);
//      train_one_step();
//      report = tracker.Report();
//    }
//
// An allocation belongs to the line that runs when it is made. This includes memory that Lua does
// not know: tensors that autograd saves for backward, gradients (the line of x:backward()), and
// workspaces. The tracker sees memory that libtorch's allocators report to profilers: allocated by
// this thread while the tracker lives, or by a thread that libtorch gives this thread's state. The
// place of the latter is that thread's: "" if it runs no Lua. On a CPU the tracker sees a release
// by any thread, such as one of Gloo that drops the last reference to a buffer. On a GPU it sees
// those by the threads whose allocations it sees. The first tracker of a CPU replaces libtorch's
// allocator for good. A release then costs one atomic read while no tracker lives. While one lives,
// an allocation costs a walk over Lua's stack.
//
// Trackers may nest. A trace (driver/watching/trace.h) and a tracker cannot run together, because
// libtorch has one place per thread for an observer. Thread: construct and destroy trackers, the
// inner one first, on the thread that they watch.

#ifndef LOCKSTEP_DRIVER_WATCHING_MEMORY_LINES_H_
#define LOCKSTEP_DRIVER_WATCHING_MEMORY_LINES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/core/DeviceType.h"
#include "driver/watching/cpu_allocator.h"

namespace c10 {
class DebugInfoGuard;
}

namespace lockstep::driver {

struct LineMemory {
  std::string place;  // "train.lua:12"; "" if no script ran
  int64_t bytes = 0;
  int64_t count = 0;  // number of allocations
};

struct MemoryByLine {
  int64_t peak_bytes = 0;        // maximum held at once of the tracked allocations
  std::vector<LineMemory> peak;  // its lines, largest first
  int64_t held_bytes = 0;
  std::vector<LineMemory> held;  // lines of the memory that is still held, largest first
};

// The memory held after an allocation or a release, of the tracked allocations.
struct MemoryPoint {
  double seconds = 0;  // since the tracker began
  int64_t bytes = 0;
};

class MemoryTracker {
 public:
  // Throws c10::Error if this thread is being traced. With `keeps_points` it also notes the memory
  // after each event: 16 bytes for each.
  MemoryTracker(c10::DeviceType device, std::function<std::string()> find_place,
                bool keeps_points = false);
  MemoryTracker(const MemoryTracker&) = delete;
  MemoryTracker& operator=(const MemoryTracker&) = delete;
  ~MemoryTracker();

  MemoryByLine Report() const;

  // Forgets earlier peaks: the peak is that from here on.
  void ResetPeak();

  // Returns the points so far, in order.
  std::vector<MemoryPoint> Points() const;

 private:
  class Allocations;
  class WatchedAllocator;

  std::shared_ptr<Allocations> allocations_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;
  std::optional<ReportedAllocations> reported_;  // on a CPU
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_MEMORY_LINES_H_
