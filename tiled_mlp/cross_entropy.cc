#include "tiled_mlp/cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/log_softmax.h"
#include "ATen/ops/max.h"
#include "ATen/ops/nonzero.h"
#include "ATen/ops/zeros.h"
#include "base/torch/operators.h"
#include "base/torch/values.h"
#include "base/torch/versions/node.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "tiled_mlp/products.h"
#include "tiled_mlp/rows.h"
#include "tiled_mlp/tiles.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"

// With z the logits of a token (after the softcap), p their softmax, l = logsumexp(z), y the label,
// e the label smoothing, V the vocabulary and Z the z-loss:
//
//    loss     = l - (1 - e) z[y] - e mean(z) + Z l^2
//    dloss/dz = p (1 + 2 Z l) - (1 - e) [y] - e / V
//
// One buffer of [tile, vocabulary] becomes, in place, z, z - l, p, and that gradient; a softcap
// needs a second, for its derivative 1 - tanh^2. Low-precision logits come from the multiplication
// in that precision, as they do in the plain loss, and are scored in float32, in another buffer.
// Where the program has //kernels, one kernel makes the gradient of the logits, in any precision
// without a second buffer.

namespace lockstep::tiled_mlp {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr int64_t kDefaultTileTokens = 1024;

struct Task {
  at::Tensor labels;  // [rows]
  CrossEntropyOptions options;
  std::vector<TileRange> tiles;
  at::ScalarType dtype;      // of the multiplications
  at::ScalarType wide;       // of the scores and the loss
  at::ScalarType sum_dtype;  // of the weight's gradient
};

// The operators of //kernels for the loss of a tile. The library is not linked: a program may have
// it or not.
struct Kernels {
  using Loss = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                              const std::optional<at::Tensor>&,
                                                              int64_t, double, double, bool);
  using LossWithGradient = at::Tensor(at::Tensor&, const at::Tensor&,
                                      const std::optional<at::Tensor>&, int64_t, double, double);

  c10::TypedOperatorHandle<bool(const at::Tensor&)> are_for =
      base::FindOperator<bool(const at::Tensor&)>("lockstep::has_cross_entropy_kernel");
  c10::TypedOperatorHandle<Loss> loss = base::FindOperator<Loss>("lockstep::cross_entropy");
  c10::TypedOperatorHandle<LossWithGradient> with_gradient =
      base::FindOperator<LossWithGradient>("lockstep::cross_entropy_with_gradient_");
};

// Returns the operators, or nullptr where they have no kernel for the device of `x`.
const Kernels* KernelsFor(const at::Tensor& x) {
  static const std::optional<Kernels> kernels =
      c10::Dispatcher::singleton().findSchema({"lockstep::cross_entropy", ""}).has_value()
          ? std::optional<Kernels>(Kernels())
          : std::nullopt;
  if (!kernels.has_value()) return nullptr;
  // Not an operator to record: a replay does not ask again.
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(base::kRecordingKey);
  return kernels->are_for.call(x) ? &*kernels : nullptr;
}

// The requested gradients, and their values.
struct Gradients {
  at::Tensor hidden;  // [rows, hidden]; undefined: not asked for
  GradientSum weight, bias;
};

class Scores {
 public:
  Scores(const Task& task, const at::Tensor& hidden, const at::Tensor& weight)
      : task_(task),
        kernels_(KernelsFor(weight)),
        hidden_(hidden.detach()),
        weight_(weight.detach().to(task.dtype)) {
    const at::Tensor& bias = task.options.bias;
    if (bias.defined()) bias_ = bias.detach().to(task.dtype);
    const std::array<int64_t, 2> sizes = {task.tiles.front().size(), weight.size(0)};
    logits_ = at::empty(sizes, weight_.options());
    const bool in_place = task.wide == task.dtype || (kernels_ && task.options.softcap == 0);
    scores_ = in_place ? logits_ : at::empty(sizes, weight_.options().dtype(task.wide));
    if (task.options.softcap > 0) slopes_ = at::empty_like(scores_);
  }

  // The losses of a tile's tokens, [tile]; with `gradients` adds to these, each token's share times
  // its element of `scale` ([tile], or undefined for 1).
  at::Tensor Run(const TileRange& range, const at::Tensor& scale, Gradients* gradients) {
    const at::Tensor labels = task_.labels.narrow(0, range.begin, range.size());
    const at::Tensor counts = labels.ne(task_.options.ignore_index);
    at::Tensor hidden_part;
    if (gradients != nullptr && gradients->hidden.defined())
      hidden_part = gradients->hidden.narrow(0, range.begin, range.size());
    const bool may_look = base::MayReadValues(labels);
    if (may_look && !counts.any().item<bool>()) {
      if (hidden_part.defined()) hidden_part.zero_();
      return at::zeros({range.size()}, labels.options().dtype(task_.wide));
    }
    const at::Tensor ignored = counts.logical_not();
    at::Tensor rows = Rows(hidden_, NumLeadingDims(hidden_), range).to(task_.dtype);
    // Zero times what an ignored token holds may be NaN.
    if (!may_look || ignored.any().item<bool>()) rows = rows.masked_fill(ignored.unsqueeze(1), 0);
    at::Tensor scores = Score(rows);
    const at::Tensor losses = kernels_
                                  ? ByKernel(scores, labels, scale, gradients != nullptr)
                                  : ByAten(scores, labels, ignored, scale, gradients != nullptr);
    if (gradients == nullptr) return losses;
    if (slopes_.defined()) scores.mul_(slopes_.narrow(0, 0, range.size()));

    at::Tensor slope = logits_.narrow(0, 0, range.size());
    if (!scores_.is_same(logits_)) slope.copy_(scores);
    if (hidden_part.defined()) MatmulInto(hidden_part, slope, weight_, /*add=*/false);
    gradients->weight.AddProduct(slope, rows);
    gradients->bias.AddRows(slope);
    return losses;
  }

 private:
  // Returns the losses of scores. With `has_gradient` the scores become their own gradient.
  at::Tensor ByAten(at::Tensor& scores, const at::Tensor& labels, const at::Tensor& ignored,
                    const at::Tensor& scale, bool has_gradient) {
    const at::Tensor index = labels.masked_fill(ignored, 0).unsqueeze(1);
    const at::Tensor weights = ignored.logical_not().to(task_.wide);
    const double smoothing = task_.options.label_smoothing, z_loss = task_.options.z_loss;
    at::Tensor most, place, lse;
    if (z_loss > 0) std::tie(most, place) = scores.max(1, /*keepdim=*/true);
    at::log_softmax_out(scores, scores, 1);
    // Not by the label's score, which may be -infinity.
    if (z_loss > 0) lse = (most - scores.gather(1, place)).squeeze(1);
    at::Tensor losses = at::zeros({labels.size(0)}, scores.options());
    // 0 times the infinite loss of a label at -infinity would be NaN.
    if (smoothing < 1) losses = scores.gather(1, index).squeeze(1) * (smoothing - 1);
    if (smoothing > 0) losses = losses - scores.mean(1) * smoothing;
    if (z_loss > 0) losses = losses + lse.square() * z_loss;
    losses.masked_fill_(ignored, 0);
    if (!has_gradient) return losses;

    const at::Tensor factors = scale.defined() ? weights * scale : weights;
    scores.exp_();
    scores.mul_((z_loss > 0 ? factors * (1 + lse * (2 * z_loss)) : factors).unsqueeze(1));
    scores.scatter_add_(1, index, factors.unsqueeze(1) * (smoothing - 1));
    if (smoothing > 0)
      scores.sub_(factors.unsqueeze(1) * (smoothing / static_cast<double>(weight_.size(0))));
    return losses;
  }

  // The same by one kernel. With a `scale` the losses are scaled too.
  at::Tensor ByKernel(at::Tensor& scores, const at::Tensor& labels, const at::Tensor& scale,
                      bool has_gradient) {
    const CrossEntropyOptions& o = task_.options;
    std::optional<at::Tensor> weight;
    if (scale.defined()) weight = scale;
    if (has_gradient)
      return kernels_->with_gradient.call(scores, labels, weight, o.ignore_index, o.label_smoothing,
                                          o.z_loss);
    return std::get<0>(kernels_->loss.call(scores, labels, weight, o.ignore_index,
                                           o.label_smoothing, o.z_loss, /*entropy=*/false));
  }

  // [tile, vocabulary], in the wide dtype where no kernel reads the other one.
  at::Tensor Score(const at::Tensor& rows) {
    const at::Tensor logits = logits_.narrow(0, 0, rows.size(0));
    LinearInto(logits, rows, weight_, bias_);
    at::Tensor scores = scores_.narrow(0, 0, rows.size(0));
    if (!scores_.is_same(logits_)) scores.copy_(logits);
    if (!slopes_.defined()) return scores;
    scores.div_(task_.options.softcap).tanh_();
    at::Tensor slopes = slopes_.narrow(0, 0, rows.size(0));
    slopes.copy_(scores).square_().neg_().add_(1);
    return scores.mul_(task_.options.softcap);
  }

  const Task& task_;
  const Kernels* const kernels_;  // or nullptr
  at::Tensor hidden_, weight_, bias_;
  at::Tensor logits_, scores_, slopes_;
};

// The gradients that are asked for, empty as yet.
Gradients MakeGradients(const Task& task, const at::Tensor& hidden, const at::Tensor& weight,
                        bool for_hidden, bool for_weight, bool for_bias) {
  Gradients gradients;
  if (for_hidden)
    gradients.hidden =
        at::empty({CountRows(hidden, NumLeadingDims(hidden)), hidden.size(-1)}, hidden.options());
  if (for_weight) gradients.weight = GradientSum(weight, task.sum_dtype);
  if (for_bias) gradients.bias = GradientSum(task.options.bias, task.sum_dtype);
  return gradients;
}

torch::autograd::edge_list EdgesOf(const Task& task, const at::Tensor& hidden,
                                   const at::Tensor& weight) {
  return torch::autograd::collect_next_edges(
      std::vector<at::Tensor>{hidden, weight, task.options.bias});
}

at::Tensor CastTo(const at::Tensor& gradient, const at::Tensor& input) {
  return gradient.defined() ? gradient.to(input.scalar_type()) : gradient;
}

// --- The nodes -----------------------------------------------------------------------------------

// Holds the gradients of the summed loss; backward scales them.
class ScaleBackward final : public Node {
 public:
  ScaleBackward(const Task& task, const at::Tensor& hidden, const at::Tensor& weight)
      : Node(EdgesOf(task, hidden, weight)),
        hidden_sizes_(hidden.sizes().vec()),
        dtypes_{hidden.scalar_type(), weight.scalar_type(),
                task.options.bias.defined() ? task.options.bias.scalar_type() : at::kFloat} {}

  std::string name() const override { return "TiledCrossEntropyBackward"; }

  // Before apply, where the graph is not kept: then the gradients may be scaled in place.
  void will_release_variables() override { is_last_ = true; }

  variable_list apply(variable_list&& incoming) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    CheckNoGraphIsMade();
    TORCH_CHECK(!released_,
                "tiled_mlp: backward through the same cross entropy a second time; pass "
                "retain_graph to the first");
    variable_list results(3);
    if (!incoming[0].defined()) return results;
    const at::Tensor factor = divisor.defined() ? incoming[0] / divisor : incoming[0];
    for (size_t i = 0; i < results.size(); ++i) {
      if (!gradients[i].defined()) continue;
      at::Tensor scaled = is_last_ ? std::move(gradients[i]).mul_(factor) : gradients[i] * factor;
      results[i] = scaled.to(dtypes_[i]);
    }
    if (results[0].defined()) results[0] = results[0].view(hidden_sizes_);
    return results;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    gradients.fill(at::Tensor());
    released_ = true;
  }

  std::array<at::Tensor, 3> gradients;  // of hidden, weight, bias
  at::Tensor divisor;

 private:
  std::vector<int64_t> hidden_sizes_;
  std::array<at::ScalarType, 3> dtypes_;
  bool is_last_ = false;
  bool released_ = false;
};

// For losses by token: scores the tiles again.
class ScoreAgainBackward final : public base::SavingNode<3> {
 public:
  ScoreAgainBackward(const Task& task, const at::Tensor& hidden, const at::Tensor& weight)
      : SavingNode(EdgesOf(task, hidden, weight), hidden, weight, task.options.bias), task_(task) {
    task_.options.bias = at::Tensor();  // saved in saved_ alone: no cycle through its graph
    labels_version_ = VersionOfLabels();
  }

  std::string name() const override { return "TiledCrossEntropyBackward"; }

  variable_list apply(variable_list&& incoming) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    CheckNoGraphIsMade();
    if (!incoming[0].defined()) return variable_list(3);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::Tensor hidden = saved_[0].unpack(), weight = saved_[1].unpack();
    TORCH_CHECK(VersionOfLabels() == labels_version_,
                "tiled_mlp: cross entropy: labels were modified in place between forward and "
                "backward, which with reduction \"none\" looks at them again; give it a copy");
    Task task = task_;
    task.options.bias = saved_[2].unpack();
    Gradients gradients =
        MakeGradients(task, hidden, weight, task_should_compute_output(0),
                      task_should_compute_output(1), task_should_compute_output(2));
    const at::Tensor scale = incoming[0].reshape({-1}).to(task.wide);
    Scores scores(task, hidden, weight);
    for (const TileRange& range : task.tiles)
      scores.Run(range, scale.narrow(0, range.begin, range.size()), &gradients);
    const at::Tensor& g = gradients.hidden;
    return {g.defined() ? g.view(hidden.sizes()) : g, CastTo(gradients.weight.Take(), weight),
            CastTo(gradients.bias.Take(), task.options.bias)};
  }

 private:
  int64_t VersionOfLabels() const {
    return task_.labels.is_inference() ? 0 : task_.labels._version();
  }

  Task task_;
  int64_t labels_version_;
};

// --- Checks --------------------------------------------------------------------------------------

void CheckInputs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                 const CrossEntropyOptions& options, bool autocast) {
  constexpr const char* kName = "tiled_mlp: cross entropy: ";
  TORCH_CHECK_VALUE(hidden.dim() >= 1 && hidden.is_floating_point(), kName,
                    "hidden must be a floating-point tensor [..., hidden], not ", hidden.toString(),
                    " ", hidden.sizes());
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.size(1) == hidden.size(-1) && weight.size(0) > 0,
                    kName, "weight is ", weight.sizes(), "; [vocabulary, ", hidden.size(-1),
                    "] is expected for hidden ", hidden.sizes());
  TORCH_CHECK_VALUE(labels.scalar_type() == at::kLong &&
                        labels.sizes() == hidden.sizes().slice(0, hidden.sizes().size() - 1),
                    kName, "labels are ", labels.toString(), " ", labels.sizes(),
                    "; int64 of hidden's leading shape is expected, hidden is ", hidden.sizes());
  const at::Tensor& bias = options.bias;
  TORCH_CHECK_VALUE(!bias.defined() || bias.sizes() == weight.sizes().slice(0, 1), kName,
                    "bias is ", bias.sizes(), "; [", weight.size(0), "] is expected");
  for (const at::Tensor& tensor : {weight, bias}) {
    TORCH_CHECK_VALUE(!tensor.defined() || autocast || tensor.scalar_type() == hidden.scalar_type(),
                      kName, "hidden is ", hidden.scalar_type(), " and weight or bias ",
                      tensor.scalar_type(), "; outside autocast they must be the same");
  }
  for (const at::Tensor& tensor : {weight, labels, bias})
    TORCH_CHECK_VALUE(!tensor.defined() || tensor.device() == hidden.device(), kName,
                      "hidden is on ", hidden.device(), ", another argument on ", tensor.device());
  TORCH_CHECK_VALUE(options.label_smoothing >= 0 && options.label_smoothing <= 1, kName,
                    "label_smoothing must be from 0 to 1, not ", options.label_smoothing);
  for (const auto& [name, value] :
       {std::pair{"z_loss", options.z_loss}, {"softcap", options.softcap}})
    TORCH_CHECK_VALUE(value >= 0 && std::isfinite(value), kName, name,
                      " must be a finite number of at least 0, not ", value);
  TORCH_CHECK_VALUE(options.tile_tokens >= 0, kName, "tile_tokens must not be negative, but is ",
                    options.tile_tokens);
  TORCH_CHECK_VALUE(!options.divisor.defined() ||
                        (options.divisor.dim() == 0 && options.reduction == Reduction::kMean),
                    kName, "a divisor is a tensor of no dimensions, for a mean");
  if (!base::MayReadValues(labels)) return;
  TORCH_CHECK_VALUE(
      !options.divisor.defined() || options.divisor.is_cuda() || options.divisor.item<double>() > 0,
      kName, "the divisor must be above 0, not ", options.divisor.item<double>(),
      "; where no label counts, divide by 1");
  const at::Tensor outside =
      at::nonzero(labels.ne(options.ignore_index)
                      .logical_and_(labels.lt(0).logical_or_(labels.ge(weight.size(0))))
                      .reshape({-1}));
  if (outside.size(0) == 0) return;
  const int64_t first = outside[0].item<int64_t>();
  TORCH_CHECK_VALUE(false, kName, "label ", labels.reshape({-1})[first].item<int64_t>(),
                    " of token ", first, " is not in the vocabulary of ", weight.size(0),
                    ", nor ignore_index ", options.ignore_index);
}

}  // namespace

CrossEntropy TiledCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& labels, const CrossEntropyOptions& options) {
  TORCH_CHECK_VALUE(hidden.defined() && weight.defined() && labels.defined(),
                    "tiled_mlp: cross entropy: hidden, weight and labels must be given");
  const at::DeviceType device = hidden.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device);
  CheckInputs(hidden, weight, labels, options, casts);

  const int64_t num_rows = labels.numel();
  const int64_t tile_tokens = options.tile_tokens > 0 ? options.tile_tokens : kDefaultTileTokens;
  Task task;
  task.labels = labels.reshape({-1});
  task.options = options;
  task.tiles =
      BalancedTiles(num_rows, std::max<int64_t>(1, (num_rows + tile_tokens - 1) / tile_tokens));
  task.dtype = casts ? at::autocast::get_autocast_dtype(device) : hidden.scalar_type();
  task.wide = task.dtype == at::kDouble ? at::kDouble : at::kFloat;
  // A sum over tokens, not yet a mean, may leave float16's range.
  task.sum_dtype =
      (options.accumulate_fp32 && at::isReducedFloatingType(task.dtype)) || task.dtype == at::kHalf
          ? at::kFloat
          : task.dtype;

  CrossEntropy result;
  result.count = task.labels.ne(options.ignore_index).sum();
  const std::vector<at::Tensor> inputs = {hidden, weight, options.bias};
  const bool with_gradients = torch::autograd::compute_requires_grad(at::TensorList(inputs));
  const bool by_token = options.reduction == Reduction::kNone;
  // Saved before anything is computed: see tiled.cc.
  base::NodePointer<ScoreAgainBackward> again;
  if (with_gradients && by_token) again = base::MakeNode<ScoreAgainBackward>(task, hidden, weight);
  const bool now = with_gradients && !by_token;
  Gradients gradients;
  {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    gradients = MakeGradients(task, hidden, weight, now && hidden.requires_grad(),
                              now && weight.requires_grad(),
                              now && options.bias.defined() && options.bias.requires_grad());
    Scores scores(task, hidden, weight);
    result.loss = at::empty({num_rows}, hidden.options().dtype(task.wide));
    for (const TileRange& range : task.tiles)
      result.loss.narrow(0, range.begin, range.size())
          .copy_(scores.Run(range, at::Tensor(), now ? &gradients : nullptr));
    if (by_token) {
      result.loss = WithLeading(hidden, result.loss);
    } else {
      result.loss = result.loss.sum();
    }
    if (options.reduction == Reduction::kMean) {
      if (!task.options.divisor.defined()) task.options.divisor = result.count.clamp_min(1);
      task.options.divisor = task.options.divisor.detach().to(result.loss.options());
      result.loss.div_(task.options.divisor);
    }
  }
  if (again != nullptr) torch::autograd::set_history(result.loss, again);
  if (now) {
    const auto node = base::MakeNode<ScaleBackward>(task, hidden, weight);
    node->gradients = {gradients.hidden, gradients.weight.Take(), gradients.bias.Take()};
    node->divisor = task.options.divisor;
    torch::autograd::set_history(result.loss, node);
  }
  return result;
}

}  // namespace lockstep::tiled_mlp
