// Page-locked host memory, which an accelerator copies from and to while the CPU goes on.
//
// The memory is ours, exact to a page, and locked through the CUDA runtime that libtorch has loaded
// into the process; nothing here links CUDA, so that one program runs with and without it.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_PINNED_MEMORY_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_PINNED_MEMORY_H_

#include "checkpoint/offload/host_pool.h"

namespace lockstep::checkpoint {

// As the CUDA runtime declares them; 0 is success.
using HostRegister = int (*)(void* data, size_t bytes, unsigned int flags);
using HostUnregister = int (*)(void* data);

// Throws c10::Error where the process has no CUDA runtime.
HostMemory PinnedMemory();

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_PINNED_MEMORY_H_
