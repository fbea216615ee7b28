// Allocates small CPU tensors without asking whether somebody watches.
//
//    InstallCpuAllocator();       // once, at the program's start
//    {
//      const ReportedAllocations reported;   // for as long as a profiler wants to see them
//      ...
//    }
//
// libtorch's allocator spends three quarters of its instructions on questions: whether a profiler
// records memory, whether memory is to be filled, moved to a NUMA node or put in huge pages. These
// are about 4 % of an operator on four elements. This allocator takes small blocks from the C
// library, aligned as libtorch's. Larger blocks come from libtorch's allocator, and so do all
// blocks while a ReportedAllocations lives. Both kinds are the C library's memory, so both are
// freed alike.
//
// A profiler sees small blocks only while a ReportedAllocations lives. Without InstallCpuAllocator,
// as in Python, that class changes nothing. Thread-safe.

#ifndef LOCKSTEP_DRIVER_WATCHING_CPU_ALLOCATOR_H_
#define LOCKSTEP_DRIVER_WATCHING_CPU_ALLOCATOR_H_

#include <cstddef>

namespace lockstep::driver {

// The largest block that skips libtorch's allocator. Beyond it the questions do not matter.
inline constexpr size_t kMaxUnreportedBytes = size_t{16} << 10;

// Replaces libtorch's allocator for CPUs, for good. Call it before any tensor is made.
void InstallCpuAllocator();

// Lets libtorch's observers see every allocation and release on a CPU, by all threads.
class ReportedAllocations {
 public:
  ReportedAllocations();
  ~ReportedAllocations();
  ReportedAllocations(const ReportedAllocations&) = delete;
  ReportedAllocations& operator=(const ReportedAllocations&) = delete;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_CPU_ALLOCATOR_H_
