// The settings of libtorch's allocator for GPUs that a run has unless its environment says others.
//
// Expandable segments: a block of memory grows in its place, so that tensors of changing sizes, as
// the micro-batches of different lengths have, leave no gaps that nothing fits into. Source:
// "Optimizing memory usage" in PyTorch's notes on CUDA.

#ifndef LOCKSTEP_DRIVER_CUDA_ALLOCATOR_SETTINGS_H_
#define LOCKSTEP_DRIVER_CUDA_ALLOCATOR_SETTINGS_H_

namespace lockstep::driver {

// Puts them into this process's environment, unless PYTORCH_ALLOC_CONF or its older name
// PYTORCH_CUDA_ALLOC_CONF is there, even if empty. Call it before CUDA's libraries are loaded: the
// allocator reads them then.
void SetAllocatorDefaults();

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_ALLOCATOR_SETTINGS_H_
