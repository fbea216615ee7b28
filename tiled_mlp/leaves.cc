#include "tiled_mlp/leaves.h"

#include <cstdint>
#include <limits>
#include <unordered_set>
#include <utility>

#include "ATen/ops/zeros_like.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/functions/accumulate_grad.h"
#include "torch/csrc/autograd/functions/utils.h"

namespace lockstep::tiled_mlp {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

class LeafBackward final : public Node {
 public:
  // Autograd runs the ready node with the highest number first: this one, as soon as its gradient
  // exists.
  LeafBackward(std::shared_ptr<const std::atomic<bool>> alive, TakeGradient take,
               at::IntArrayRef sizes)
      : Node(/*sequence_nr=*/std::numeric_limits<uint64_t>::max()),
        alive_(std::move(alive)),
        take_(std::move(take)),
        sizes_(sizes.vec()) {}

  std::string name() const override { return "TileLeaf"; }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(*alive_,
                "tiled_mlp: backward through a tensor that the function kept of a tile, after the "
                "tile's own backward: return it from the function instead");
    if (gradients[0].defined()) take_(std::move(gradients[0]));
    return {};
  }

  at::IntArrayRef sizes() const { return sizes_; }

 private:
  const std::shared_ptr<const std::atomic<bool>> alive_;
  const TakeGradient take_;
  const std::vector<int64_t> sizes_;
};

}  // namespace

// --- The sum -------------------------------------------------------------------------------------

WeightGradient::WeightGradient(const at::Tensor& weight, bool accumulate_fp32)
    : weight_(weight),
      in_fp32_(accumulate_fp32 && at::isReducedFloatingType(weight.scalar_type())) {}

void WeightGradient::Add(at::Tensor gradient) {
  if (sum_.defined()) {
    sum_.add_(gradient);
  } else if (in_fp32_) {
    sum_ = gradient.to(at::kFloat);
  } else if (gradient.is_non_overlapping_and_dense() && gradient.use_count() == 1 &&
             gradient.storage().use_count() == 1) {
    sum_ = std::move(gradient);  // nothing else holds it
  } else {
    sum_ = gradient.clone();
  }
}

at::Tensor WeightGradient::Take(bool zeros) {
  if (!sum_.defined()) return zeros ? at::zeros_like(weight_) : at::Tensor();
  return in_fp32_ ? std::move(sum_).to(weight_.scalar_type()) : std::move(sum_);
}

// --- Leaves --------------------------------------------------------------------------------------

at::Tensor Leaves::On(const at::Tensor& tensor, TakeGradient take) const {
  const at::Tensor leaf = tensor.detach();
  torch::autograd::set_history(leaf,
                               base::MakeNode<LeafBackward>(alive_, std::move(take), leaf.sizes()));
  return leaf;
}

void CheckNothingElseIsTrained(const torch::autograd::edge_list& roots,
                               const std::vector<at::Tensor>& leaves) {
  std::unordered_set<const Node*> known;
  for (const at::Tensor& leaf : leaves) known.insert(leaf.grad_fn().get());
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> pending;
  const auto visit = [&](const Edge& edge) {
    const Node* node = edge.function.get();
    if (node != nullptr && known.count(node) == 0 && seen.insert(node).second)
      pending.push_back(node);
  };
  for (const Edge& root : roots) visit(root);
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    for (const Edge& edge : node->next_edges()) visit(edge);
    const auto* weight = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    const auto* leaf = dynamic_cast<const LeafBackward*>(node);  // of tiles around these
    if (weight == nullptr && leaf == nullptr) continue;
    TORCH_CHECK_VALUE(false, "tiled_mlp: the function uses a tensor of shape ",
                      weight != nullptr ? weight->variable.sizes() : leaf->sizes(),
                      " that requires a gradient but is none of the weights given, so it would get "
                      "none; pass it as a weight, or detach it");
  }
}

}  // namespace lockstep::tiled_mlp
