// Page-locked host memory, which an accelerator copies from and to while the CPU goes on.
//
//    auto pool = std::make_shared<HostMemoryPool>(base::PinnedMemory());
//
// The failure this prevents: a copy between a device and ordinary memory is not asynchronous. The
// CPU waits for it and starts no further kernels. Use PageableMemory where all tensors are on the
// CPU: page-locking is slow, and locked memory cannot be swapped out.
//
// Allocations are exact to a page. They are locked through the CUDA runtime that libtorch has
// loaded into the process. This library does not link CUDA, so one program runs with and without
// it.

#ifndef LOCKSTEP_BASE_TORCH_COPIES_PINNED_MEMORY_H_
#define LOCKSTEP_BASE_TORCH_COPIES_PINNED_MEMORY_H_

#include "base/host_memory.h"

namespace lockstep::base {

// Returns a source of page-locked memory. It locks 4 MiB at a time for smaller requests. Throws
// c10::Error if the process has no CUDA runtime.
HostMemory PinnedMemory();

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_COPIES_PINNED_MEMORY_H_
