#include "kernels/lora/products.h"

#include <cstdint>
#include <optional>

#include "ATen/Context.h"
#include "ATen/TensorSubclassLikeUtils.h"
#include "ATen/core/List.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "ATen/core/stack.h"
#include "ATen/ops/mm.h"
#include "base/torch/one_dnn.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kMinRows = 16;

// Inductor calls this operator for linear layers. A libtorch without oneDNN has none.
const std::optional<c10::OperatorHandle>& OneDnnLinear() {
  static const std::optional<c10::OperatorHandle> op =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return op;
}

bool IsDenseFloat(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.layout() == at::kStrided &&
         x.dim() == 2 && x.numel() > 0 && !at::isTensorSubclassLike(x);
}

}  // namespace

bool IsForOneDnn(const at::Tensor& x, const at::Tensor& weight) {
  return base::IsOneDnnFaster() && IsDenseFloat(x) && IsDenseFloat(weight) &&
         x.size(0) >= kMinRows && x.is_contiguous() &&
         (weight.is_contiguous() || weight.t().is_contiguous()) &&
         at::globalContext().userEnabledMkldnn() && OneDnnLinear().has_value();
}

at::Tensor ProductOfRows(const at::Tensor& x, const at::Tensor& weight) {
  if (!IsForOneDnn(x, weight)) return at::mm(x, weight.t());
  torch::jit::Stack stack;
  torch::jit::push(stack, x, weight, /*bias=*/c10::IValue(), "none",
                   c10::List<std::optional<at::Scalar>>(), /*algorithm=*/c10::IValue());
  OneDnnLinear()->callBoxed(stack);
  return torch::jit::pop(stack).toTensor();
}

}  // namespace lockstep::kernels
