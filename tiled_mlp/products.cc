#include "tiled_mlp/products.h"

#include <optional>
#include <utility>

#include "ATen/ops/addmm.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/zeros.h"

namespace lockstep::tiled_mlp {

void LinearInto(at::Tensor out, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias) {
  if (out.scalar_type() != weight.scalar_type()) {
    out.copy_(at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt));
  } else if (bias.defined()) {
    at::addmm_out(out, bias, x, weight.t());
  } else {
    at::mm_out(out, x, weight.t());
  }
}

void MatmulInto(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) {
  const at::Tensor operand = a.to(b.scalar_type());
  if (out.scalar_type() != b.scalar_type()) {
    const at::Tensor product = at::mm(operand, b);
    add ? out.add_(product) : out.copy_(product);
  } else if (add) {
    out.addmm_(operand, b);
  } else {
    at::mm_out(out, operand, b);
  }
}

void GradientSum::AddProduct(const at::Tensor& a, const at::Tensor& b) {
  if (!weight_.defined()) return;
  const bool first = !sum_.defined();
  if (first) sum_ = at::empty(weight_.sizes(), weight_.options().dtype(dtype_));
  if (a.scalar_type() == dtype_ && b.scalar_type() == dtype_) {
    first ? at::mm_out(sum_, a.t(), b) : sum_.addmm_(a.t(), b);
  } else if (sum_.is_cuda() && a.scalar_type() == b.scalar_type()) {
    // Low-precision operands, float32 sum: cuBLAS has it, ATen's CPU has not.
    if (first) sum_.zero_();
    at::addmm_out(sum_, sum_, a.t(), b, dtype_);
  } else {
    const at::Tensor left = a.t().to(dtype_), right = b.to(dtype_);
    first ? at::mm_out(sum_, left, right) : sum_.addmm_(left, right);
  }
}

void GradientSum::AddRows(const at::Tensor& a) {
  if (!weight_.defined()) return;
  const at::Tensor share = a.sum(0, /*keepdim=*/false, dtype_);
  sum_ = sum_.defined() ? sum_.add_(share) : share;
}

at::Tensor GradientSum::Take() {
  if (!weight_.defined() || sum_.defined()) return std::move(sum_);
  return at::zeros(weight_.sizes(), weight_.options().dtype(dtype_));
}

}  // namespace lockstep::tiled_mlp
