// Writes traces of operators and kernels over time for chrome://tracing and ui.perfetto.dev, by the
// Kineto in libtorch.
//
//    Trace trace("trace-rank0.json", {.record_shapes = true});
//    train_one_step();
//    trace.Stop();  // writes the file
//
// A trace holds operators, their backward, spans (at::RecordScope::USER_SCOPE), memory on request,
// and a GPU's kernels and copies. One trace at a time in a process, and not together with a
// MemoryTracker (driver/watching/memory_lines.h). Thread: construct, use and stop it on the thread
// that it watches.

#ifndef LOCKSTEP_DRIVER_WATCHING_TRACE_H_
#define LOCKSTEP_DRIVER_WATCHING_TRACE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "driver/watching/cpu_allocator.h"

namespace at {
struct RecordFunction;
}

namespace lockstep::driver {

struct TraceOptions {
  bool record_shapes = false;   // of operators' arguments
  bool profile_memory = false;  // each allocation and free
};

class Trace {
 public:
  // Begins the trace. Throws c10::Error if another trace runs, or a MemoryTracker of this thread.
  Trace(std::string path, const TraceOptions& options);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Stops unless Stop was called, and complains on stderr if the file cannot be written.
  ~Trace();

  // Begins a span "ProfilerStep#<step>", as torch.profiler does. It lasts until the next step or
  // the end.
  void BeginStep(int64_t step);

  // Ends the trace and writes the file; only the first call does. Throws std::runtime_error, with
  // the path, if it cannot.
  void Stop();

 private:
  const std::string path_;
  std::optional<ReportedAllocations> reported_;  // with profile_memory
  std::unique_ptr<at::RecordFunction> step_;
  bool is_running_ = true;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_TRACE_H_
