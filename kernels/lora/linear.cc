#include "ATen/ops/linear.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "ATen/TensorOperators.h"
#include "ATen/TensorSubclassLikeUtils.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/mm.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "kernels/aten/private_operators.h"
#include "kernels/kernels.h"
#include "kernels/lora/lora.h"
#include "kernels/lora/products.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::variable_list;
using Bias = std::optional<at::Tensor>;

bool Has(const Bias& bias) { return bias.has_value() && bias->defined(); }

// Adds low b^T, or low b with a transposed b, to `y`, and returns the sum in y's dtype. Writes to
// y's memory where the dtypes are the same.
at::Tensor AddProduct(const at::Tensor& y, const at::Tensor& low, const at::Tensor& b) {
  if (y.scalar_type() == low.scalar_type()) return y.addmm_(low, b);
  return y.to(low.scalar_type()).addmm_(low, b).to(y.scalar_type());
}

class LoraLinearBackward final : public base::SavingNode<5> {
 public:
  // `low`: scale x a^T. Backward reads x for the gradient of a, and the weight for
  // the gradient of x.
  LoraLinearBackward(const at::Tensor& x, const at::Tensor& weight, const Bias& bias,
                     const at::Tensor& a, const at::Tensor& b, double scale, const at::Tensor& low)
      : SavingNode(
            torch::autograd::collect_next_edges(x, weight, bias, a, b),
            a.requires_grad() || b.requires_grad() || weight.requires_grad() ? x : at::Tensor(),
            x.requires_grad() ? weight : at::Tensor(), a, b, low),
        sizes_(x.sizes()),
        scale_(scale) {}

  std::string name() const override { return "LoraLinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined()) return variable_list(5);
    const int64_t rows = c10::multiply_integers(sizes_.begin(), sizes_.end() - 1);
    const at::Tensor dy = gradients[0].reshape({rows, gradients[0].size(-1)});
    return at::GradMode::is_enabled() ? OfAten(dy, rows) : Fast(dy.contiguous(), rows);
  }

 private:
  // Calls operators that record a graph, for gradients of gradients.
  variable_list OfAten(const at::Tensor& dy, int64_t rows) {
    const at::Tensor a = saved_[2].unpack(), b = saved_[3].unpack();
    const at::Tensor wide = dy.to(a.scalar_type());
    const at::Tensor x = Unpack(0, rows), weight = saved_[1].unpack();
    const at::Tensor dlow = at::mm(wide, b) * scale_;
    variable_list results(5);
    if (task_should_compute_output(0))
      results[0] = (at::mm(dy, weight) + at::mm(dlow, a)).to(dy.scalar_type()).view(sizes_);
    if (task_should_compute_output(1)) results[1] = at::mm(dy.t(), x);
    if (task_should_compute_output(2)) results[2] = dy.sum(0);
    if (task_should_compute_output(3)) results[3] = at::mm(dlow.t(), x.to(a.scalar_type()));
    if (task_should_compute_output(4))
      results[4] = at::mm(wide.t(), at::mm(x.to(a.scalar_type()), a.t())) * scale_;
    return results;
  }

  variable_list Fast(const at::Tensor& dy, int64_t rows) {
    const at::Tensor a = saved_[2].unpack(), b = saved_[3].unpack();
    const at::Tensor wide = dy.to(a.scalar_type());
    variable_list results(5);
    at::Tensor dlow;
    if (task_should_compute_output(0) || task_should_compute_output(3))
      dlow = ProductOfRows(wide, b.t()).mul_(scale_);
    if (task_should_compute_output(0)) {
      const at::Tensor dx = ProductOfRows(dy, saved_[1].unpack().t());
      results[0] = AddProduct(dx, dlow, a).view(sizes_);
    }
    if (task_should_compute_output(1)) results[1] = at::mm(dy.t(), Unpack(0, rows));
    if (task_should_compute_output(2)) results[2] = dy.sum(0);
    // The few rows of an adapter come first, so that x and dy are read without a transposed copy.
    if (task_should_compute_output(3)) {
      const at::Tensor x = Unpack(0, rows).to(a.scalar_type());
      results[3] = ProductOfRows(dlow.t().contiguous(), x.t());
    }
    if (task_should_compute_output(4)) {
      const at::Tensor low = saved_[4].unpack();
      results[4] = ProductOfRows(low.t().contiguous(), wide.t()).t().contiguous();
    }
    return results;
  }

  // Returns a saved input of forward as a matrix, or an undefined one.
  at::Tensor Unpack(size_t index, int64_t rows) {
    const at::Tensor x = saved_[index].unpack();
    return x.defined() ? x.reshape({rows, sizes_.back()}) : x;
  }

  const at::DimVector sizes_;  // of x
  const double scale_;
};

bool IsDense(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.is_contiguous() && !at::isTensorSubclassLike(x) &&
         !torch::autograd::isFwGradDefined(x);
}

// Returns whether the operator takes these as a whole.
bool IsForOneNode(const at::Tensor& x, const at::Tensor& weight, const Bias& bias,
                  const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType dtype = x.scalar_type(), adapter = a.scalar_type();
  return at::isFloatingType(dtype) && weight.scalar_type() == dtype && b.scalar_type() == adapter &&
         (adapter == dtype || (adapter == at::kFloat && at::isReducedFloatingType(dtype))) &&
         (!Has(bias) || (bias->scalar_type() == dtype && IsDense(*bias))) && x.dim() >= 2 &&
         x.numel() > 1 && IsDense(x) && IsDense(weight) && IsDense(a) && IsDense(b) &&
         !at::autocast::is_autocast_enabled(x.device().type());
}

at::Tensor Plain(const at::Tensor& x, const at::Tensor& weight, const Bias& bias,
                 const at::Tensor& a, const at::Tensor& b, double scale) {
  const at::Tensor y = Linear(x, weight, bias);
  const at::Tensor update = Linear(Linear(x.to(a.scalar_type()), a), b) * scale;
  return (y + update).to(y.scalar_type());
}

void Check(const at::Tensor& x, const at::Tensor& weight, const Bias& bias, const at::Tensor& a,
           const at::Tensor& b) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
                    "lora_linear: x must be [..., in] and weight [out, in], got ", x.sizes(),
                    " and ", weight.sizes());
  TORCH_CHECK_VALUE(!Has(bias) || (bias->dim() == 1 && bias->size(0) == weight.size(0)),
                    "lora_linear: bias must be [", weight.size(0), "], got ",
                    Has(bias) ? bias->sizes() : at::IntArrayRef());
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2 && a.size(1) == weight.size(1) &&
                        b.size(0) == weight.size(0) && a.size(0) == b.size(1),
                    "lora_linear: a must be [r, ", weight.size(1), "] and b [", weight.size(0),
                    ", r], got ", a.sizes(), " and ", b.sizes());
}

// Returns the layer's own result, [rows, out], with the bits that it has without an adapter: Linear
// calls other kernels where nothing is recorded for backward. The caller may write to it.
at::Tensor Base(const at::Tensor& x, const at::Tensor& weight, const Bias& bias, bool records) {
  return records ? at::linear(x, weight, bias) : Linear(x, weight, bias);
}

at::Tensor OfDispatcher(const at::Tensor& x, const at::Tensor& weight, const Bias& bias,
                        const at::Tensor& a, const at::Tensor& b, double scale) {
  return LoraLinear(x, weight, bias, a, b, scale);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "lora_linear(Tensor x, Tensor weight, Tensor? bias, Tensor a, Tensor b, float scale) -> "
      "Tensor",
      OfDispatcher);
}

}  // namespace

at::Tensor LoraLinear(const at::Tensor& x, const at::Tensor& weight, const Bias& bias,
                      const at::Tensor& a, const at::Tensor& b, double scale) {
  Check(x, weight, bias, a, b);
  if (!IsForOneNode(x, weight, bias, a, b)) return Plain(x, weight, bias, a, b, scale);
  at::DimVector shape(x.sizes());
  shape.back() = weight.size(0);
  const bool base_records = torch::autograd::compute_requires_grad(x, weight, bias);
  at::Tensor low, y;
  {
    // Selections of checkpoint see calls that pass the key below autograd, so it stays.
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowAutograd below;
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    low = ProductOfRows(rows.to(a.scalar_type()), a).mul_(scale);
    // Not a view: autograd would refuse to write to a view that was made without gradients.
    y = UnsafeView(AddProduct(Base(rows, weight, bias, base_records), low, b.t()), shape);
  }
  if (torch::autograd::compute_requires_grad(x, weight, bias, a, b)) {
    torch::autograd::set_history(
        y, base::MakeNode<LoraLinearBackward>(x, weight, bias, a, b, scale, low));
  }
  return y;
}

}  // namespace lockstep::kernels
