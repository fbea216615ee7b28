// A library that stands for CUDA's driver, libcuda.so.1, in tests: it notes the calls.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CUDA_FAKE_DRIVER_H_
#define LOCKSTEP_KERNELS_POINTWISE_CUDA_FAKE_DRIVER_H_

#include <string>

namespace lockstep::kernels::pointwise::cuda {

struct FakeDriver {
  int contexts[2] = {10, 11};  // of two devices: their numbers
  void* context = nullptr;     // the current one
  int num_contexts = 0, num_modules = 0;
  std::string kernel;                      // the last one that was asked for
  int load_status = 0, launch_status = 0;  // what the next loads and launches return
  void (*run)(unsigned blocks, unsigned threads, void* stream, const void* arguments) = nullptr;
};

}  // namespace lockstep::kernels::pointwise::cuda

// The library's. dlsym finds it by this name.
extern "C" lockstep::kernels::pointwise::cuda::FakeDriver fake_driver;

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_FAKE_DRIVER_H_
