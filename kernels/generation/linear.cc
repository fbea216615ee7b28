#include "ATen/ops/linear.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "ATen/TensorSubclassLikeUtils.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/sum.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "kernels/aten/parallel.h"
#include "kernels/generation/generation.h"
#include "kernels/inputs.h"
#include "kernels/kernels.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::variable_list;
using Bias = std::optional<at::Tensor>;
using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const Bias&);

bool Has(const Bias& bias) { return bias.has_value() && bias->defined(); }

// Whether the kernel may read the memory of this tensor.
bool IsPlain(const at::Tensor& x) {
  return x.is_cpu() && x.layout() == at::kStrided && !at::isTensorSubclassLike(x) &&
         !torch::autograd::isFwGradDefined(x);
}

bool HasShapes(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) return false;
  if (x.numel() == 0 || weight.size(0) == 0) return false;
  if (!IsForLinearRows(x.numel() / x.size(-1), x.size(-1))) return false;
  if (weight.stride(1) != 1) return false;
  return !Has(bias) || (bias->dim() == 1 && bias->size(0) == weight.size(0));
}

bool HasDtypes(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  const at::ScalarType dtype = x.scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble || at::isReducedFloatingType(dtype)) &&
         weight.scalar_type() == dtype && (!Has(bias) || bias->scalar_type() == dtype) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

bool IsForKernel(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  return HasShapes(x, weight, bias) && IsPlain(x) && IsPlain(weight) &&
         (!Has(bias) || IsPlain(*bias)) && HasDtypes(x, weight, bias) &&
         !torch::autograd::compute_requires_grad(x, weight, bias);
}

// An operator of its own, so that profiles and counters of FLOPs see it.
at::Tensor CallFewRows(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  static const auto op = base::FindOperator<Signature>("lockstep::linear_of_few_rows");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, weight, bias);
}

// --- Gradients

// at::linear makes four nodes, and a view for most of them: for small layers that takes longer than
// the products.
class LinearBackward final : public base::SavingNode<2> {
 public:
  LinearBackward(const at::Tensor& x, const at::Tensor& weight, const Bias& bias)
      : SavingNode(torch::autograd::collect_next_edges(x, weight, bias),
                   weight.requires_grad() ? x : at::Tensor(),
                   x.requires_grad() ? weight : at::Tensor()),
        sizes_(x.sizes()) {}

  std::string name() const override { return "LinearBackward"; }

  // The products are those of ATen's own nodes, so that gradients have the same bits.
  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(3);
    if (!gradients[0].defined()) return results;
    const int64_t rows = c10::multiply_integers(sizes_.begin(), sizes_.end() - 1);
    const at::Tensor dy = gradients[0].reshape({rows, gradients[0].size(-1)});
    if (task_should_compute_output(0)) results[0] = at::mm(dy, saved_[1].unpack()).view(sizes_);
    if (task_should_compute_output(1))
      results[1] = at::mm(dy.t(), saved_[0].unpack().reshape({rows, sizes_.back()}));
    if (task_should_compute_output(2)) results[2] = dy.sum(0);
    return results;
  }

 private:
  const at::DimVector sizes_;  // of x
};

// For other strides ATen may choose other products.
bool IsDense(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.is_contiguous() && !at::isTensorSubclassLike(x) &&
         !torch::autograd::isFwGradDefined(x);
}

// Returns whether LinearWithGradients takes these, and one of them needs a gradient.
bool NeedsGradients(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  // ATen takes an x of one number for a column, and adds its gradient up in another order.
  return torch::autograd::compute_requires_grad(x, weight, bias) && x.dim() >= 2 &&
         x.numel() != 1 && weight.dim() == 2 && IsDense(x) && IsDense(weight) &&
         (!Has(bias) || IsDense(*bias)) && (!Has(bias) || bias->dim() == 1) &&
         !at::autocast::is_autocast_enabled(x.device().type());
}

at::Tensor LinearWithGradients(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  const auto node = base::MakeNode<LinearBackward>(x, weight, bias);
  const at::Tensor y = base::BelowAutograd([&] { return at::linear(x, weight, bias); });
  torch::autograd::set_history(y, node);
  return y;
}

// --- The choice

at::Tensor Choose(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  if (NeedsGradients(x, weight, bias)) return LinearWithGradients(x, weight, bias);
  return IsForKernel(x, weight, bias) ? CallFewRows(x, weight, bias) : at::linear(x, weight, bias);
}

at::Tensor ByKernel(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  TORCH_CHECK_VALUE(HasShapes(x, weight, bias) && HasDtypes(x, weight, bias),
                    "linear_of_few_rows: x, weight or bias is not for it; call linear");
  const at::ScalarType dtype = x.scalar_type();
  const at::Tensor wide = x.to(at::isReducedFloatingType(dtype) ? at::kFloat : dtype).contiguous();
  const at::Tensor biases = Has(bias) ? bias->contiguous() : at::Tensor();
  const int64_t size = weight.size(1), outputs = weight.size(0);
  at::DimVector shape(x.sizes());
  shape.back() = outputs;
  const at::Tensor y = at::empty(shape, x.options());
  const LinearRows rows = {
      .dtype = dtype,
      .rows = x.numel() / size,
      .size = size,
      .outputs = outputs,
      .x = wide.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .weight_stride = weight.stride(0),
      .scales = nullptr,
      .bias = biases.defined() ? biases.const_data_ptr() : nullptr,
      .residual = nullptr,
      .y = y.mutable_data_ptr(),
  };
  ParallelFor(outputs, std::max<int64_t>(1, kWeightGrain / size), [&](int64_t begin, int64_t end) {
    ChosenGenerationKernels().linear(rows, begin, end);
  });
  return y;
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", Choose);
  library.def("linear_of_few_rows(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("linear_of_few_rows", ByKernel); }

}  // namespace

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  return Choose(x, weight, bias);
}

}  // namespace lockstep::kernels
