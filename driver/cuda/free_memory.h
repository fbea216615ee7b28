// A function that frees memory. CUDA's allocator calls it before it asks the device for more.
//
// The driver's function lets Lua collect dead tensors. So a backward pass, which cannot be
// repeated, does not fail because garbage fills the memory.
//
// Source: c10::FreeMemoryCallback of libtorch 2.11.

#ifndef LOCKSTEP_DRIVER_CUDA_FREE_MEMORY_H_
#define LOCKSTEP_DRIVER_CUDA_FREE_MEMORY_H_

#include <atomic>

namespace lockstep::driver {

// Returns whether it freed any memory. The allocator calls it on each thread that allocates, with
// its lock held, if no free block fits: before each request to the device, and before an error.
using FreeMemory = bool (*)();

// The exported symbol of liblockstep_cuda.so: a variable of the type below. The allocator calls the
// function that it holds; nullptr at first.
using FreeMemoryVariable = std::atomic<FreeMemory>;
inline constexpr char kFreeMemorySymbol[] = "lockstep_free_memory";

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_FREE_MEMORY_H_
