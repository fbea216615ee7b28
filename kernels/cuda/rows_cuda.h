// The kernels for NVIDIA GPUs, which nvcc compiles from the same loops as those for CPUs.

#ifndef LOCKSTEP_KERNELS_CUDA_ROWS_CUDA_H_
#define LOCKSTEP_KERNELS_CUDA_ROWS_CUDA_H_

#include "kernels/rows.h"

namespace lockstep::kernels {

// Each launches on the current stream of the current device, and does not wait.
extern const RowKernels kRowKernelsOfCuda;

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CUDA_ROWS_CUDA_H_
