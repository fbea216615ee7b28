// Traces of what runs when, for chrome://tracing and ui.perfetto.dev, by the Kineto in libtorch.
//
//   Trace trace("trace-rank0.json", {.record_shapes = true});
//   train_one_step();
//   trace.Stop();  // writes the file
//
// In it: operators, their backward, spans (at::RecordScope::USER_SCOPE), memory where that was
// asked for, and a GPU's kernels and copies where there is one. One at a time in a process, and
// none inside a MemoryTracker (driver/watching/memory_lines.h) or around one. Thread: made, told
// and stopped on the one that it watches.

#ifndef LOCKSTEP_DRIVER_WATCHING_TRACE_H_
#define LOCKSTEP_DRIVER_WATCHING_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>

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
  // Begins. Throws c10::Error where another trace or a MemoryTracker of this thread is under way.
  Trace(std::string path, const TraceOptions& options);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Stops where nobody did, and complains on stderr where the file cannot be written.
  ~Trace();

  // A span "ProfilerStep#<step>" from here to the next step or the end, as torch.profiler's.
  void BeginStep(int64_t step);

  // Ends, and writes the file. The first call alone does. Throws std::runtime_error, with the path,
  // where it cannot.
  void Stop();

 private:
  const std::string path_;
  std::unique_ptr<at::RecordFunction> step_;
  bool is_running_ = true;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_TRACE_H_
