#include "tiled_mlp/testing/strategies.h"

#include <set>
#include <utility>

#include "ATen/ATen.h"
#include "base/torch/versions/node.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"

namespace lockstep::tiled_mlp {
namespace {

std::set<const c10::TensorImpl*>& ReadyWeights() {
  static auto* const ready = new std::set<const c10::TensorImpl*>();
  return *ready;
}

void SetReady(const std::vector<at::Tensor>& weights, bool ready) {
  for (const at::Tensor& weight : weights) {
    if (ready) {
      ReadyWeights().insert(weight.unsafeGetTensorImpl());
    } else {
      ReadyWeights().erase(weight.unsafeGetTensorImpl());
    }
  }
}

struct Hidden : torch::CustomClassHolder {
  Strategy strategy;
  TileBody body;
  std::vector<at::Tensor> weights;
  int64_t num_tiles;
};

void AddTo(const at::Tensor& weight, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  if (weight.grad().defined()) {
    weight.grad().add_(gradient);
  } else {
    weight.mutable_grad() = gradient;
  }
}

// Backward of one tile; the gradient of its rows.
at::Tensor RunTile(const Hidden& hidden, const at::Tensor& rows, const at::Tensor& dy, bool is_last,
                   std::vector<at::Tensor>& sums) {
  const at::AutoGradMode with_graph(true);
  const at::Tensor leaf = rows.detach().requires_grad_();
  const at::Tensor y = hidden.body(leaf, hidden.weights)[0];
  switch (hidden.strategy) {
    case Strategy::kReadyFlag: SetReady(hidden.weights, is_last); [[fallthrough]];
    case Strategy::kBackwardPerTile: torch::autograd::backward({y}, {dy}); return leaf.grad();
    case Strategy::kGradThenBackward: {
      if (is_last) {
        torch::autograd::backward({y}, {dy});
        return leaf.grad();
      }
      std::vector<at::Tensor> inputs = {leaf};
      inputs.insert(inputs.end(), hidden.weights.begin(), hidden.weights.end());
      const std::vector<at::Tensor> found = torch::autograd::grad(
          {y}, inputs, {dy}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
      for (size_t i = 0; i < hidden.weights.size(); ++i) AddTo(hidden.weights[i], found[i + 1]);
      return found[0];
    }
    case Strategy::kOwnSums: {
      torch::autograd::backward({y}, {dy});
      for (size_t i = 0; i < hidden.weights.size(); ++i) {
        at::Tensor share = std::exchange(hidden.weights[i].mutable_grad(), at::Tensor());
        if (!share.defined()) continue;
        sums[i] = sums[i].defined() ? sums[i] + share : share;
      }
      return leaf.grad();
    }
    case Strategy::kExplicit: break;
  }
  return {};
}

struct HiddenWeights : torch::autograd::Function<HiddenWeights> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<Hidden>& hidden) {
    context->save_for_backward({x});
    context->saved_data["hidden"] = c10::IValue::make_capsule(hidden);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& rows : x.chunk(hidden->num_tiles, 0))
      parts.push_back(hidden->body(rows, hidden->weights)[0]);
    return at::cat(parts);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto capsule = context->saved_data["hidden"].toCapsule();
    const Hidden& hidden = static_cast<const Hidden&>(*capsule);
    const std::vector<at::Tensor> rows =
        context->get_saved_variables()[0].chunk(hidden.num_tiles, 0);
    const std::vector<at::Tensor> dy = gradients[0].chunk(hidden.num_tiles, 0);
    std::vector<at::Tensor> before, sums(hidden.weights.size()), dx;
    if (hidden.strategy == Strategy::kOwnSums) {
      for (const at::Tensor& weight : hidden.weights)
        before.push_back(std::exchange(weight.mutable_grad(), at::Tensor()));
    }
    // As upstream: the last tile is number num_tiles, though chunk may have given fewer.
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool is_last = static_cast<int64_t>(i) + 1 == hidden.num_tiles;
      dx.push_back(RunTile(hidden, rows[i], dy[i], is_last, sums));
    }
    for (size_t i = 0; i < before.size(); ++i) {
      hidden.weights[i].mutable_grad() = before[i];
      AddTo(hidden.weights[i], sums[i]);
    }
    return {at::cat(dx), at::Tensor()};
  }
};

class CountingHook final : public torch::autograd::FunctionPostHook {
 public:
  CountingHook(std::shared_ptr<std::vector<int>> counts, size_t index, at::Tensor weight,
               std::function<bool(const at::Tensor&)> is_ready)
      : counts_(std::move(counts)),
        index_(index),
        weight_(weight),
        is_ready_(std::move(is_ready)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    if (!is_ready_ || is_ready_(weight_)) ++(*counts_)[index_];
    return outputs;
  }

 private:
  std::shared_ptr<std::vector<int>> counts_;
  size_t index_;
  at::Tensor weight_;
  std::function<bool(const at::Tensor&)> is_ready_;
};

}  // namespace

void PrintTo(Strategy strategy, std::ostream* out) { *out << "ABCDE"[static_cast<int>(strategy)]; }

at::Tensor RunStrategy(Strategy strategy, const TileBody& body, const at::Tensor& x,
                       const std::vector<at::Tensor>& weights, int64_t num_tiles) {
  if (strategy == Strategy::kExplicit)
    return RunTiled(body, x, weights, {.size = {.num_tiles = num_tiles}})[0];
  auto hidden = c10::make_intrusive<Hidden>();
  hidden->strategy = strategy;
  hidden->body = body;
  hidden->weights = weights;
  hidden->num_tiles = num_tiles;
  return HiddenWeights::apply(x, hidden);
}

bool IsReady(const at::Tensor& weight) {
  return ReadyWeights().count(weight.unsafeGetTensorImpl()) > 0;
}

struct AccumulateCounter::Watched {
  base::NodePointer<torch::autograd::Node> accumulator;  // keeps it, and so the hook, alive
  uintptr_t key;
};

AccumulateCounter::AccumulateCounter(const std::vector<at::Tensor>& weights,
                                     std::function<bool(const at::Tensor&)> is_ready)
    : counts_(std::make_shared<std::vector<int>>(weights.size())) {
  for (size_t i = 0; i < weights.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(weights[i]);
    const uintptr_t key = accumulator->add_post_hook(
        std::make_unique<CountingHook>(counts_, i, weights[i], is_ready));
    watched_.push_back(std::make_unique<Watched>(Watched{std::move(accumulator), key}));
  }
}

AccumulateCounter::~AccumulateCounter() {
  for (const auto& watched : watched_) watched->accumulator->del_post_hook(watched->key);
}

std::vector<int> AccumulateCounter::Take() {
  return std::exchange(*counts_, std::vector<int>(counts_->size()));
}

}  // namespace lockstep::tiled_mlp
