// LaunchKernel: starts a kernel with a geometry, on the current stream. LOCKSTEP_KERNEL_ASSERT is
// an assertion within a kernel. Where g++ compiles the sources of the kernels, it runs them on the
// CPU, for tests: see testing/emulator.h.

#ifndef LOCKSTEP_KERNELS_CUDA_LAUNCH_H_
#define LOCKSTEP_KERNELS_CUDA_LAUNCH_H_

#include "kernels/cuda/geometry.h"

#if defined(__CUDACC__)

#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAStream.h"
#include "c10/macros/Macros.h"

// Stops the kernel, as ATen's own kernels do, unless `condition` holds. The host sees the error at
// its next wait.
#define LOCKSTEP_KERNEL_ASSERT(condition) CUDA_KERNEL_ASSERT(condition)

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
