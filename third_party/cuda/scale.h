// The least that shows cuda_library at work: x[i] *= factor on the device.

#ifndef LOCKSTEP_THIRD_PARTY_CUDA_SCALE_H_
#define LOCKSTEP_THIRD_PARTY_CUDA_SCALE_H_

#include <cstdint>

namespace lockstep {

// x: device memory of n floats. On the default stream; returns a cudaError_t, 0 for success.
int ScaleOnDevice(float* x, int64_t n, float factor);

}  // namespace lockstep

#endif  // LOCKSTEP_THIRD_PARTY_CUDA_SCALE_H_
