// LaunchKernel: starts a kernel with a geometry, on the current stream. Where g++ compiles the
// sources of the kernels, it runs them on the CPU, for tests: see testing/emulator.h.

#ifndef LOCKSTEP_KERNELS_CUDA_LAUNCH_H_
#define LOCKSTEP_KERNELS_CUDA_LAUNCH_H_

#include "kernels/cuda/geometry.h"

#if defined(__CUDACC__)

#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAStream.h"

namespace lockstep::kernels {

template <typename... Parameters, typename... Arguments>
void LaunchKernel(void (*kernel)(Parameters...), const Geometry& geometry,
                  const Arguments&... arguments) {
  const dim3 blocks(static_cast<unsigned>(geometry.blocks_x),
                    static_cast<unsigned>(geometry.blocks_y));
  const dim3 threads(geometry.threads_x, geometry.threads_y);
  kernel<<<blocks, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(arguments...);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace lockstep::kernels

#elif defined(LOCKSTEP_CUDA_ON_CPU)  // by testing/on_cpu.bzl
#include "kernels/cuda/testing/cuda_on_cpu.h"
#endif

#endif  // LOCKSTEP_KERNELS_CUDA_LAUNCH_H_
