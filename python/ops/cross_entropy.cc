#include "tiled_mlp/cross_entropy.h"

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "c10/util/Exception.h"
#include "c10/util/string_view.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/library.h"

// Tiled cross entropy as an operator that torch.compile need not look into. Forward computes the
// gradients too, because only there are the logits; so `gradients` says which of hidden, weight and
// bias need one. Those that need none are empty. lockstep/_ops.py registers the backward that
// scales them. With reduction "none" forward computes no gradients, and backward scores the tiles
// again.

namespace lockstep::python {
namespace {

using tiled_mlp::CrossEntropy;
using tiled_mlp::CrossEntropyOptions;
using tiled_mlp::Reduction;
using tiled_mlp::TiledCrossEntropy;
using Optional = std::optional<at::Tensor>;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Reduction ReductionOf(c10::string_view name) {
  if (name == "mean") return Reduction::kMean;
  if (name == "sum") return Reduction::kSum;
  TORCH_CHECK_VALUE(name == "none",
                    "tiled_cross_entropy: reduction must be \"mean\", \"sum\" or \"none\", not \"",
                    name, "\"");
  return Reduction::kNone;
}

// The inputs on a graph of their own, which ends at them.
struct Leaves {
  at::Tensor hidden, weight;
  CrossEntropyOptions options;

  Leaves(const at::Tensor& given_hidden, const at::Tensor& given_weight, const Optional& bias,
         std::array<bool, 3> gradients)
      : hidden(given_hidden.detach().requires_grad_(gradients[0])),
        weight(given_weight.detach().requires_grad_(gradients[1])) {
    if (bias.has_value()) options.bias = bias->detach().requires_grad_(gradients[2]);
  }

  // The gradients of `loss` for those that require one. The others are empty.
  Gradients Of(const at::Tensor& loss, const Optional& dloss) const {
    const std::array<at::Tensor, 3> all = {hidden, weight, options.bias};
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& x : all)
      if (x.defined() && x.requires_grad()) inputs.push_back(x);
    std::vector<at::Tensor> found;
    if (!inputs.empty()) {
      std::vector<at::Tensor> seeds;
      if (dloss.has_value()) seeds.push_back(*dloss);
      found = torch::autograd::grad({loss}, inputs, seeds);
    }
    std::array<at::Tensor, 3> results;
    size_t next = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool wanted = all[i].defined() && all[i].requires_grad();
      results[i] = wanted ? found[next++] : at::empty({0}, hidden.options());
    }
    return {results[0], results[1], results[2]};
  }
};

Results Forward(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                const Optional& bias, const Optional& divisor, int64_t ignore_index,
                double label_smoothing, double z_loss, double softcap, c10::string_view reduction,
                int64_t tile_tokens, bool accumulate_fp32, std::array<bool, 3> gradients) {
  const Reduction how = ReductionOf(reduction);
  if (how == Reduction::kNone) gradients = {false, false, false};
  const at::AutoGradMode with_gradients(gradients[0] || gradients[1] || gradients[2]);
  Leaves leaves(hidden, weight, bias, gradients);
  CrossEntropyOptions& options = leaves.options;
  options.ignore_index = ignore_index;
  options.label_smoothing = label_smoothing;
  options.z_loss = z_loss;
  options.softcap = softcap;
  options.reduction = how;
  if (divisor.has_value()) options.divisor = *divisor;
  options.tile_tokens = tile_tokens;
  options.accumulate_fp32 = accumulate_fp32;
  const CrossEntropy result = TiledCrossEntropy(leaves.hidden, leaves.weight, labels, options);
  const auto [dhidden, dweight, dbias] = leaves.Of(result.loss, std::nullopt);
  return {result.loss.detach(), result.count, dhidden, dweight, dbias};
}

Gradients Backward(const at::Tensor& dloss, const at::Tensor& hidden, const at::Tensor& weight,
                   const at::Tensor& labels, const Optional& bias, int64_t ignore_index,
                   double label_smoothing, double z_loss, double softcap, int64_t tile_tokens,
                   bool accumulate_fp32, std::array<bool, 3> gradients) {
  const at::AutoGradMode with_gradients(true);
  Leaves leaves(hidden, weight, bias, gradients);
  CrossEntropyOptions& options = leaves.options;
  options.ignore_index = ignore_index;
  options.label_smoothing = label_smoothing;
  options.z_loss = z_loss;
  options.softcap = softcap;
  options.reduction = Reduction::kNone;
  options.tile_tokens = tile_tokens;
  options.accumulate_fp32 = accumulate_fp32;
  return leaves.Of(TiledCrossEntropy(leaves.hidden, leaves.weight, labels, options).loss, dloss);
}

at::Tensor EmptyLike(const at::Tensor& x, bool wanted) {
  if (!wanted) return at::empty({0}, x.options());
  return at::empty_symint(x.sym_sizes(), x.options());
}

Gradients EmptyGradients(const at::Tensor& hidden, const at::Tensor& weight, const Optional& bias,
                         std::array<bool, 3> gradients) {
  return {EmptyLike(hidden, gradients[0]),
          gradients[1] ? EmptyLike(weight, true) : EmptyLike(hidden, false),
          gradients[2] && bias.has_value() ? EmptyLike(*bias, true) : EmptyLike(hidden, false)};
}

Results OnMeta(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
               const Optional& bias, const Optional&, int64_t, double, double, double,
               c10::string_view reduction, int64_t, bool, std::array<bool, 3> gradients) {
  const auto wide =
      hidden.options().dtype(hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const bool by_token = ReductionOf(reduction) == Reduction::kNone;
  if (by_token) gradients = {false, false, false};
  const auto [dhidden, dweight, dbias] = EmptyGradients(hidden, weight, bias, gradients);
  return {by_token ? at::empty_symint(labels.sym_sizes(), wide) : at::empty({}, wide),
          at::empty({}, labels.options()), dhidden, dweight, dbias};
}

Gradients BackwardOnMeta(const at::Tensor&, const at::Tensor& hidden, const at::Tensor& weight,
                         const at::Tensor&, const Optional& bias, int64_t, double, double, double,
                         int64_t, bool, std::array<bool, 3> gradients) {
  return EmptyGradients(hidden, weight, bias, gradients);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "tiled_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, Tensor? bias, Tensor? "
      "divisor, int ignore_index, float label_smoothing, float z_loss, float softcap, str "
      "reduction, int tile_tokens, bool accumulate_fp32, bool[3] gradients) -> (Tensor loss, "
      "Tensor count, Tensor, Tensor, Tensor)");
  library.def(
      "tiled_cross_entropy_backward(Tensor dloss, Tensor hidden, Tensor weight, Tensor labels, "
      "Tensor? bias, int ignore_index, float label_smoothing, float z_loss, float softcap, int "
      "tile_tokens, bool accumulate_fp32, bool[3] gradients) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lockstep, CompositeExplicitAutograd, library) {
  library.impl("tiled_cross_entropy", Forward);
  library.impl("tiled_cross_entropy_backward", Backward);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) {
  library.impl("tiled_cross_entropy", OnMeta);
  library.impl("tiled_cross_entropy_backward", BackwardOnMeta);
}

}  // namespace
}  // namespace lockstep::python
