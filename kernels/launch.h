// Runs a loop of rows.h where a tensor is.

#ifndef LOCKSTEP_KERNELS_LAUNCH_H_
#define LOCKSTEP_KERNELS_LAUNCH_H_

#include <cstdint>

#include "ATen/Parallel.h"
#include "ATen/core/TensorBody.h"
#include "c10/core/DeviceGuard.h"
#include "kernels/rows.h"

namespace lockstep::kernels {

// Runs a kernel over [0, count). On a CPU, threads take ranges of at least `grain`. On a GPU it is
// launched on the current stream of x's device. x's device must have kernels (HasKernels).
template <typename Rows>
void Launch(const at::Tensor& x, void (*RowKernels::*kernel)(const Rows&, int64_t, int64_t),
            const Rows& rows, int64_t count, int64_t grain) {
  if (x.is_cuda()) {
    const c10::DeviceGuard guard(x.device());
    (CudaRowKernels()->*kernel)(rows, 0, count);
    return;
  }
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    (ChosenRowKernels().*kernel)(rows, begin, end);
  });
}

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_LAUNCH_H_
