#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/TensorSubclassLikeUtils.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/sum.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "kernels/kernels.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The edges of x, of the weights, then of the biases.
torch::autograd::edge_list EdgesOf(const at::Tensor& x, at::TensorList weights,
                                   at::TensorList biases) {
  torch::autograd::edge_list edges = {torch::autograd::impl::gradient_edge(x)};
  for (const at::TensorList list : {weights, biases})
    for (const at::Tensor& tensor : list)
      edges.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                             : torch::autograd::Edge());
  return edges;
}

// The node of all layers: the products of the gradient of x are added up where they are computed.
// One node for each layer would write a gradient of x for each, and read all of them to add them.
class LinearsBackward final : public base::SavingNode<kMostLinears + 1> {
 public:
  LinearsBackward(const at::Tensor& x, at::TensorList weights, at::TensorList biases)
      : SavingNode(EdgesOf(x, weights, biases)), count_(weights.size()), sizes_(x.sizes()) {
    bool need_x = false;
    for (size_t i = 0; i < count_; ++i) {
      saved_[1 + i] = SavedVariable(weights[i], /*is_output=*/false);
      need_x = need_x || weights[i].requires_grad();
    }
    if (need_x) saved_[0] = SavedVariable(x, /*is_output=*/false);
  }

  std::string name() const override { return "LinearsBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t rows = c10::multiply_integers(sizes_.begin(), sizes_.end() - 1);
    const bool has_biases = num_outputs() > 1 + count_;
    variable_list results(num_outputs());
    at::Tensor x;
    // The last layer first: autograd adds up the gradients of single layers in this order.
    for (size_t i = count_; i-- > 0;) {
      if (!gradients[i].defined()) continue;
      const at::Tensor dy = gradients[i].reshape({rows, gradients[i].size(-1)});
      gradients[i].reset();
      if (task_should_compute_output(0)) AddProduct(results[0], dy, saved_[1 + i].unpack());
      if (task_should_compute_output(1 + i)) {
        if (!x.defined()) x = saved_[0].unpack().reshape({rows, sizes_.back()});
        results[1 + i] = at::mm(dy.t(), x);
      }
      const size_t bias = 1 + count_ + i;
      if (has_biases && task_should_compute_output(bias)) results[bias] = dy.sum(0);
    }
    if (results[0].defined()) results[0] = results[0].view(sizes_);
    return results;
  }

 private:
  // Adds dy weight to a sum, which is undefined at first.
  static void AddProduct(at::Tensor& sum, const at::Tensor& dy, const at::Tensor& weight) {
    if (!sum.defined()) {
      sum = at::mm(dy, weight);
    } else if (at::GradMode::is_enabled()) {
      sum = sum + at::mm(dy, weight);
    } else {
      sum.addmm_(dy, weight);
    }
  }

  const size_t count_;         // of the layers
  const at::DimVector sizes_;  // of x
};

// For other strides ATen may choose other products.
bool IsDense(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.is_contiguous() && !at::isTensorSubclassLike(x) &&
         !torch::autograd::isFwGradDefined(x);
}

// Returns whether one node takes these. Without a gradient of x there is no sum.
bool IsForOneNode(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  // ATen takes an x of one number for a column.
  if (!torch::autograd::compute_requires_grad(x) || x.dim() < 2 || x.numel() == 1 || !IsDense(x) ||
      at::autocast::is_autocast_enabled(x.device().type()))
    return false;
  for (const at::Tensor& weight : weights)
    if (weight.dim() != 2 || !IsDense(weight) || weight.scalar_type() != x.scalar_type())
      return false;
  for (const at::Tensor& bias : biases)
    if (bias.dim() != 1 || !IsDense(bias)) return false;
  return true;
}

std::vector<at::Tensor> OfDispatcher(const at::Tensor& x, at::TensorList weights,
                                     at::TensorList biases) {
  return Linears(x, weights, biases);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("linears(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor[]", OfDispatcher);
}

}  // namespace

std::vector<at::Tensor> Linears(const at::Tensor& x, at::TensorList weights,
                                at::TensorList biases) {
  TORCH_CHECK_VALUE(!weights.empty() && weights.size() <= kMostLinears, "linears: expected 1 to ",
                    kMostLinears, " weights, got ", weights.size());
  TORCH_CHECK_VALUE(biases.empty() || biases.size() == weights.size(),
                    "linears: expected no bias or one for each of the ", weights.size(),
                    " weights, got ", biases.size());
  const bool one_node = IsForOneNode(x, weights, biases);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::optional<at::Tensor> bias =
        biases.empty() ? std::nullopt : std::optional<at::Tensor>(biases[i]);
    results.push_back(one_node
                          ? base::BelowAutograd([&] { return at::linear(x, weights[i], bias); })
                          : Linear(x, weights[i], bias));
  }
  if (one_node) {
    const auto node = base::MakeNode<LinearsBackward>(x, weights, biases);
    for (const at::Tensor& y : results) torch::autograd::set_history(y, node);
  }
  return results;
}

}  // namespace lockstep::kernels
