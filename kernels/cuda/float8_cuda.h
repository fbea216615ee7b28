// The casts to float8 on NVIDIA GPUs.

#ifndef LOCKSTEP_KERNELS_CUDA_FLOAT8_CUDA_H_
#define LOCKSTEP_KERNELS_CUDA_FLOAT8_CUDA_H_

#include "kernels/float8/cast_loops.h"

namespace lockstep::kernels {

extern const float8::CudaCasts kFloat8CastsOfCuda;

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CUDA_FLOAT8_CUDA_H_
