#include "kernels/inputs.h"

#include "c10/util/Exception.h"
#include "kernels/rows.h"

namespace lockstep::kernels {

void CheckFloating(const char* op, const char* name, const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
      op, ": ", name, " must be float16, bfloat16, float32 or float64, got ", dtype);
  TORCH_CHECK_VALUE(x.dim() > 0, op, ": ", name, " must have at least one dimension, got none");
}

void CheckAlike(const char* op, const char* x_name, const at::Tensor& x, const char* y_name,
                const at::Tensor& y) {
  TORCH_CHECK_VALUE(x.scalar_type() == y.scalar_type(), op, ": ", y_name, " is ", y.scalar_type(),
                    ", but ", x_name, " is ", x.scalar_type(), "; convert one of them");
  TORCH_CHECK_VALUE(x.device() == y.device(), op, ": ", y_name, " is on ", y.device(), ", but ",
                    x_name, " is on ", x.device(), "; move one of them");
}

bool HasKernels(const at::Tensor& x) {
  return x.is_cpu() || x.is_meta() || (x.is_cuda() && CudaRowKernels() != nullptr);
}

const RowKernels& KernelsFor(const at::Tensor& x) {
  return x.is_cuda() ? *CudaRowKernels() : ChosenRowKernels();
}

RowView RowsOf(const at::Tensor& x) {
  const int64_t size = x.size(-1);
  if (x.is_contiguous()) return {x, size};
  int64_t stride = 0, rows = 1;  // of the dimensions so far, from the right
  bool fits = x.stride(-1) == 1 || size == 1;
  for (int64_t dim = x.dim() - 2; dim >= 0; --dim) {
    if (x.size(dim) == 1) continue;
    if (rows == 1) stride = x.stride(dim);
    fits = fits && x.stride(dim) == stride * rows;
    rows *= x.size(dim);
  }
  if (fits) return {x, stride};
  return {x.contiguous(), size};
}

}  // namespace lockstep::kernels
