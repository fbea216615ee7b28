// Measures what a function allocates on the CPU, for tests and benchmarks.

#ifndef LOCKSTEP_TESTS_SUPPORT_CPU_MEMORY_H_
#define LOCKSTEP_TESTS_SUPPORT_CPU_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"

namespace lockstep::tests {

// Bytes that the CPU's allocator hands out while a function runs, less the bytes before: the
// maximum, and the rest after it has returned.
struct Memory {
  int64_t peak = 0;
  int64_t kept = 0;
};

class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t alloc_size, size_t, size_t, c10::Device) override {
    now.kept += alloc_size;
    now.peak = std::max(now.peak, now.kept);
  }
  bool memoryProfilingEnabled() const override { return true; }
  Memory now;
};

template <typename Function>
Memory MemoryOf(const Function& function) {
  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  function();
  return meter->now;
}

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_CPU_MEMORY_H_
