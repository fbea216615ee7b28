// Prepares the operators' inputs before a kernel reads them: checks, and views as rows. Runs a
// kernel where they are.

#ifndef LOCKSTEP_KERNELS_INPUTS_H_
#define LOCKSTEP_KERNELS_INPUTS_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"
#include "c10/core/DeviceGuard.h"
#include "kernels/aten/parallel.h"
#include "kernels/rows.h"

namespace lockstep::kernels {

// Throws c10::ValueError unless `x` has at least one dimension and is float16, bfloat16, float32 or
// float64. `op` and `name` begin the message: "swiglu: gate ...".
void CheckFloating(const char* op, const char* name, const at::Tensor& x);

// Throws c10::ValueError unless `y` has the dtype and the device of `x`.
void CheckAlike(const char* op, const char* x_name, const at::Tensor& x, const char* y_name,
                const at::Tensor& y);

// Returns whether a kernel exists for x's device; elsewhere ATen's operators do the same.
bool HasKernels(const at::Tensor& x);

// Returns the kernels for x's device, which must have some (HasKernels).
const RowKernels& KernelsFor(const at::Tensor& x);

// The rows of a tensor: its last dimension is dense, and its rows are `stride` numbers apart.
struct RowView {
  at::Tensor tensor;  // x, or a copy where x's strides do not fit
  int64_t stride;

  const void* data() const { return tensor.const_data_ptr(); }
};
RowView RowsOf(const at::Tensor& x);

// The size of a thread's smallest share, in numbers.
inline constexpr int64_t kGrain = 16384;

// Runs a kernel over [0, count). On a CPU, threads take ranges of at least `grain`. On a GPU it is
// launched on the current stream of x's device. x's device must have kernels (HasKernels).
template <typename Rows>
void Launch(const at::Tensor& x, void (*RowKernels::*kernel)(const Rows&, int64_t, int64_t),
            const Rows& rows, int64_t count, int64_t grain) {
  if (x.is_cuda()) {
    const c10::DeviceGuard guard(x.device());
    (KernelsFor(x).*kernel)(rows, 0, count);
    return;
  }
  ParallelFor(count, grain,
              [&](int64_t begin, int64_t end) { (ChosenRowKernels().*kernel)(rows, begin, end); });
}

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_INPUTS_H_
