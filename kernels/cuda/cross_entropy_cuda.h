// The cross entropy on NVIDIA GPUs.

#ifndef LOCKSTEP_KERNELS_CUDA_CROSS_ENTROPY_CUDA_H_
#define LOCKSTEP_KERNELS_CUDA_CROSS_ENTROPY_CUDA_H_

#include "kernels/cross_entropy/loss_rows.h"

namespace lockstep::kernels {

extern const LossKernels kLossKernelsOfCuda;

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CUDA_CROSS_ENTROPY_CUDA_H_
