// The compute capability of a GPU, which liblockstep_cuda.so exports: see cuda_library.h.

#ifndef LOCKSTEP_DRIVER_CUDA_CAPABILITY_H_
#define LOCKSTEP_DRIVER_CUDA_CAPABILITY_H_

#include <utility>

namespace lockstep::driver {

// Returns the major and the minor number of a device: {9, 0} of an H100.
using DeviceCapability = std::pair<int, int> (*)(int device);

// The exported symbol: a variable of type DeviceCapability.
inline constexpr char kDeviceCapabilitySymbol[] = "lockstep_device_capability";

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CAPABILITY_H_
