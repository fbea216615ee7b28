// Page-locked host memory, which an accelerator copies from and to while the CPU goes on.
//
// Allocations are exact to a page. They are locked through the CUDA runtime that libtorch has
// loaded into the process. This library does not link CUDA, so one program runs with and without
// it.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_PINNED_MEMORY_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_PINNED_MEMORY_H_

#include "checkpoint/offload/host_pool.h"

namespace lockstep::checkpoint {

// The CUDA runtime's functions; they return 0 on success.
using HostRegister = int (*)(void* data, size_t bytes, unsigned int flags);
using HostUnregister = int (*)(void* data);

// Throws c10::Error if the process has no CUDA runtime.
HostMemory PinnedMemory();

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_PINNED_MEMORY_H_
