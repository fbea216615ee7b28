// Tells the operators of the kernels for GPUs. They find them through the dispatcher, because the
// kernels may be in a library that is loaded later (liblockstep_cuda.so).

#include <string>

#include "ATen/cuda/CUDAContext.h"
#include "kernels/cuda/cross_entropy_cuda.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/float8_cuda.h"
#include "kernels/cuda/rows_cuda.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

Capability CapabilityNow() {
  const cudaDeviceProp* const device = at::cuda::getCurrentDeviceProperties();
  return {.major = device->major, .minor = device->minor};
}

// The address of kernels, or 0 where the current GPU has no image of them. Operators compose those
// of ATen then. A process uses GPUs of one kind.
int64_t AddressIfRuns(const void* kernels) {
  return ImagesFor(CapabilityNow()) == Images::kNone ? 0 : reinterpret_cast<int64_t>(kernels);
}

int64_t Address() { return AddressIfRuns(&kRowKernelsOfCuda); }

int64_t AddressOfFloat8() { return AddressIfRuns(&kFloat8CastsOfCuda); }

int64_t AddressOfLosses() { return AddressIfRuns(&kLossKernelsOfCuda); }

std::string Line() {
  return KernelsLine(at::cuda::getCurrentDeviceProperties()->name, CapabilityNow());
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("row_kernels_of_cuda() -> int", Address);
  library.def("float8_casts_of_cuda() -> int", AddressOfFloat8);
  library.def("loss_kernels_of_cuda() -> int", AddressOfLosses);
  library.def("kernels_line_of_cuda() -> str", Line);
}

}  // namespace
}  // namespace lockstep::kernels
