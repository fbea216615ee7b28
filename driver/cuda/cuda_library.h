// liblockstep_cuda.so, which holds everything that the driver links of CUDA. So one binary runs
// with and without GPUs, and starts without loading libtorch_cuda on a machine without a GPU.

#ifndef LOCKSTEP_DRIVER_CUDA_CUDA_LIBRARY_H_
#define LOCKSTEP_DRIVER_CUDA_CUDA_LIBRARY_H_

namespace lockstep::driver {

// Returns the library's symbol of this name: a variable that holds a function. Loads the library,
// and CUDA's with it, at the first call, behind SetAllocatorDefaults. Throws c10::Error if it
// cannot be loaded. Thread-safe.
void* CudaSymbol(const char* name);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CUDA_LIBRARY_H_
