// liblockstep_cuda.so, which holds all that the driver links of CUDA: one binary runs with and
// without GPUs, and starts without loading libtorch_cuda where there is none.

#ifndef LOCKSTEP_DRIVER_CUDA_CUDA_LIBRARY_H_
#define LOCKSTEP_DRIVER_CUDA_CUDA_LIBRARY_H_

namespace lockstep::driver {

// What the library exports under this name: a variable that holds a function. Loads the library,
// and CUDA's with it, the first time. Throws c10::Error where it cannot be loaded. Thread-safe.
void* CudaSymbol(const char* name);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CUDA_LIBRARY_H_
