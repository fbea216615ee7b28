// Allocates small CPU tensors without asking whether somebody watches.
//
//    InstallCpuAllocator();       // once, at the program's start
//    {
//      const ReportedAllocations reported;   // for as long as a profiler wants to see them
//      ...
//    }
//
// libtorch's allocator spends about three quarters of its instructions on questions: whether a
// profiler records memory, whether memory is to be filled, moved to a NUMA node or put in huge
// pages. That is 5 % of an operator on four elements. This allocator passes small blocks straight
// to the C library, aligned as libtorch's. Larger blocks, and all while a ReportedAllocations
// lives, come from libtorch's allocator. Both kinds are the C library's memory, so either allocator
// can free what the other allocated.
//
// A profiler sees the allocations of the program only while a ReportedAllocations lives. Without
// InstallCpuAllocator, as in Python, that class changes nothing. Thread-safe.

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
