// The part of capability.h that links CUDA: in liblockstep_cuda.so.

#include "ATen/cuda/CUDAContext.h"
#include "driver/cuda/capability.h"

namespace lockstep::driver {
namespace {

std::pair<int, int> CapabilityOf(int device) {
  const cudaDeviceProp* const properties =
      at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
  return {properties->major, properties->minor};
}

}  // namespace
}  // namespace lockstep::driver

extern "C" __attribute__((visibility("default")))
lockstep::driver::DeviceCapability lockstep_device_capability;
lockstep::driver::DeviceCapability lockstep_device_capability = &lockstep::driver::CapabilityOf;
