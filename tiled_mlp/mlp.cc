#include "tiled_mlp/mlp.h"

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/gelu_backward.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/silu.h"
#include "ATen/ops/silu_backward.h"
#include "base/torch/operators.h"
#include "base/torch/values.h"
#include "base/torch/versions/node.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "tiled_mlp/products.h"
#include "tiled_mlp/rows.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"

// A tile's backward in four buffers of [tile, intermediate], a to d:
//
//    a = x gate^T         b = x up^T                       computed again
//    c = act(a)           d = c * b        down's gradient += dy^T d
//    d = dy down          c = c * d        up's gradient   += c^T x
//    b = b * d            a = act'(a) * b  gate's gradient += a^T x
//    x's gradient = a gate + c up
//
// Each += is one matrix multiplication with beta = 1. mlp_test.cc holds it against autograd's
// gradients of the same formula.

namespace lockstep::tiled_mlp {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr size_t kGate = 0, kUp = 1, kDown = 2, kGateBias = 3, kUpBias = 4, kDownBias = 5;
constexpr std::array<const char*, 6> kNames = {"gate",      "up",      "down",
                                               "gate_bias", "up_bias", "down_bias"};
using WeightArray = std::array<at::Tensor, 6>;

// --- Activations ---------------------------------------------------------------------------------

const char* Approximation(Activation activation) {
  return activation == Activation::kGeluTanh ? "tanh" : "none";
}

void ActivationInto(at::Tensor out, const at::Tensor& x, Activation activation) {
  if (activation == Activation::kSilu) {
    at::silu_out(out, x);
  } else {
    at::gelu_out(out, x, Approximation(activation));
  }
}

// x becomes the gradient of the activation at x times `gradient`.
void ActivationBackward(at::Tensor x, const at::Tensor& gradient, Activation activation) {
  if (activation == Activation::kSilu) {
    at::silu_backward_out(x, gradient, x);
  } else {
    at::gelu_backward_out(x, gradient, x, Approximation(activation));
  }
}

at::Tensor RunUntiled(const at::Tensor& x, const WeightArray& w, Activation activation) {
  const auto linear = [&](const at::Tensor& input, size_t weight, size_t bias) {
    return at::linear(input, w[weight], w[bias].defined() ? std::optional(w[bias]) : std::nullopt);
  };
  const auto act = [&](const at::Tensor& input) {
    return activation == Activation::kSilu ? at::silu(input)
                                           : at::gelu(input, Approximation(activation));
  };
  const at::Tensor up = linear(x, kUp, kUpBias);
  return linear(w[kGate].defined() ? at::mul(act(linear(x, kGate, kGateBias)), up) : act(up), kDown,
                kDownBias);
}

// --- The node ------------------------------------------------------------------------------------

struct Job {
  Activation activation;
  TileOptions options;
  std::vector<TileRange> tiles;
  at::ScalarType dtype;  // of operands and of the output
};

// The buffers of a pass: [largest tile, intermediate] each. A tile uses its rows of them.
class Buffers {
 public:
  Buffers(size_t count, const Job& job, const at::Tensor& up, at::ScalarType dtype) {
    for (size_t i = 0; i < count; ++i)
      buffers_.push_back(
          at::empty({job.tiles.front().size(), up.size(0)}, up.options().dtype(dtype)));
  }
  at::Tensor Get(size_t i, int64_t rows) const { return buffers_[i].narrow(0, 0, rows); }

 private:
  std::vector<at::Tensor> buffers_;
};

WeightArray CastAll(const WeightArray& weights, at::ScalarType dtype) {
  WeightArray cast;
  for (size_t i = 0; i < cast.size(); ++i)
    cast[i] = weights[i].defined() ? weights[i].detach().to(dtype) : at::Tensor();
  return cast;
}

at::Tensor RunForward(const Job& job, const at::Tensor& x, const WeightArray& weights) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const WeightArray w = CastAll(weights, job.dtype);
  const bool gated = w[kGate].defined();
  const Buffers buffers(gated ? 2 : 1, job, w[kUp], job.dtype);
  const at::Tensor y =
      at::empty({job.tiles.back().end, w[kDown].size(0)}, x.options().dtype(job.dtype));
  for (const TileRange& range : job.tiles) {
    const at::Tensor rows = Rows(x, NumLeadingDims(x), range).to(job.dtype);
    const at::Tensor a = buffers.Get(0, range.size());
    LinearInto(a, rows, w[gated ? kGate : kUp], w[gated ? kGateBias : kUpBias]);
    ActivationInto(a, a, job.activation);
    if (gated) {
      const at::Tensor b = buffers.Get(1, range.size());
      LinearInto(b, rows, w[kUp], w[kUpBias]);
      a.mul_(b);
    }
    LinearInto(y.narrow(0, range.begin, range.size()), a, w[kDown], w[kDownBias]);
  }
  return WithLeading(x, y);
}

class TiledMlpBackward final : public base::SavingNode<7> {
 public:
  TiledMlpBackward(const at::Tensor& x, const WeightArray& weights, Job job)
      : SavingNode({}, x), job_(std::move(job)) {
    std::vector<at::Tensor> inputs = {x};
    for (const at::Tensor& weight : weights) {
      saved_[inputs.size()] = SavedVariable(weight, /*is_output=*/false);
      inputs.push_back(weight);
    }
    set_next_edges(torch::autograd::collect_next_edges(inputs));
  }

  std::string name() const override { return "TiledMlpBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    CheckNoGraphIsMade();
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::Tensor x = saved_[0].unpack().detach();
    WeightArray weights;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = saved_[i + 1].unpack();
    if (!gradients[0].defined()) return variable_list(1 + weights.size());

    const bool low = at::isReducedFloatingType(job_.dtype);
    const at::ScalarType sum_dtype = job_.options.accumulate_fp32 && low ? at::kFloat : job_.dtype;
    std::array<GradientSum, 6> sums;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i].defined() && task_should_compute_output(i + 1))
        sums[i] = GradientSum(weights[i], sum_dtype);
    }
    at::Tensor x_gradient;
    if (task_should_compute_output(0))
      x_gradient = at::empty({job_.tiles.back().end, x.size(-1)}, x.options());
    RunTiles(x, CastAll(weights, job_.dtype), gradients[0], x_gradient, sums);

    variable_list results;
    results.push_back(x_gradient.defined() ? x_gradient.view(x.sizes()) : at::Tensor());
    for (size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor sum = sums[i].Take();
      results.push_back(sum.defined() ? sum.to(weights[i].scalar_type()) : sum);
    }
    return results;
  }

 private:
  void RunTiles(const at::Tensor& x, const WeightArray& w, const at::Tensor& dy,
                const at::Tensor& x_gradient, std::array<GradientSum, 6>& sums) {
    // Where a CPU adds up in float32 it has no product of bfloat16 with a float32 sum: operands are
    // cast, so they may as well be computed in float32.
    const bool wide = job_.options.accumulate_fp32 && x.device().is_cpu() &&
                      at::isReducedFloatingType(job_.dtype);
    const Buffers buffers(4, job_, w[kUp], wide ? at::kFloat : job_.dtype);
    const bool skip_zeros = job_.options.skip_zero_gradients.value_or(base::MayReadValues(x));
    for (const TileRange& range : job_.tiles) {
      const at::Tensor part = Rows(dy, NumLeadingDims(x), range);
      at::Tensor x_part =
          x_gradient.defined() ? x_gradient.narrow(0, range.begin, range.size()) : at::Tensor();
      if (skip_zeros && range.size() > 0 && IsZero(part)) {
        if (job_.options.stats) ++job_.options.stats->skipped_tiles;
        if (x_part.defined()) x_part.zero_();
        continue;
      }
      if (job_.options.stats) ++job_.options.stats->backward_tiles;
      RunTile(Rows(x, NumLeadingDims(x), range).to(job_.dtype), w, part.to(job_.dtype), x_part,
              buffers, sums);
    }
  }

  void RunTile(const at::Tensor& x, const WeightArray& w, const at::Tensor& dy,
               const at::Tensor& x_part, const Buffers& buffers, std::array<GradientSum, 6>& sums) {
    const bool gated = w[kGate].defined();
    const int64_t rows = x.size(0);
    const at::Tensor a = buffers.Get(0, rows), b = buffers.Get(1, rows), c = buffers.Get(2, rows),
                     d = buffers.Get(3, rows);
    LinearInto(a, x, w[gated ? kGate : kUp], w[gated ? kGateBias : kUpBias]);
    ActivationInto(c, a, job_.activation);
    if (gated) {
      LinearInto(b, x, w[kUp], w[kUpBias]);
      at::mul_out(const_cast<at::Tensor&>(d), c, b);
    }
    sums[kDown].AddProduct(dy, gated ? d : c);
    sums[kDownBias].AddRows(dy);
    MatmulInto(d, dy, w[kDown], /*add=*/false);
    if (gated) {
      c.mul_(d);
      sums[kUp].AddProduct(c, x);
      sums[kUpBias].AddRows(c);
      b.mul_(d);
    }
    ActivationBackward(a, gated ? b : d, job_.activation);
    sums[gated ? kGate : kUp].AddProduct(a, x);
    sums[gated ? kGateBias : kUpBias].AddRows(a);
    if (!x_part.defined()) return;
    MatmulInto(x_part, a, w[gated ? kGate : kUp], /*add=*/false);
    if (gated) MatmulInto(x_part, c, w[kUp], /*add=*/true);
  }

  Job job_;
};

// --- Checks --------------------------------------------------------------------------------------

void CheckWeights(const at::Tensor& x, const WeightArray& w, bool autocast) {
  TORCH_CHECK_VALUE(
      w[kUp].defined() && w[kDown].defined() && w[kUp].dim() == 2 && w[kDown].dim() == 2,
      "tiled_mlp: up and down must be matrices, [intermediate, hidden] and [out, "
      "intermediate]");
  const int64_t hidden = x.size(-1), intermediate = w[kUp].size(0), out = w[kDown].size(0);
  const std::array<std::vector<int64_t>, 6> expected = {{{intermediate, hidden},
                                                         {intermediate, hidden},
                                                         {out, intermediate},
                                                         {intermediate},
                                                         {intermediate},
                                                         {out}}};
  for (size_t i = 0; i < w.size(); ++i) {
    if (!w[i].defined()) continue;
    TORCH_CHECK_VALUE(w[i].sizes() == expected[i], "tiled_mlp: ", kNames[i], " is ", w[i].sizes(),
                      ", but x with hidden size ", hidden, ", up ", w[kUp].sizes(), " and down ",
                      w[kDown].sizes(), " want ", at::IntArrayRef(expected[i]));
    TORCH_CHECK_VALUE(autocast || w[i].scalar_type() == x.scalar_type(), "tiled_mlp: ", kNames[i],
                      " is ", w[i].scalar_type(), " and x ", x.scalar_type(),
                      "; outside autocast they must be the same");
    TORCH_CHECK_VALUE(w[i].device() == x.device(), "tiled_mlp: ", kNames[i], " is on ",
                      w[i].device(), " and x on ", x.device());
  }
  TORCH_CHECK_VALUE(w[kGate].defined() || !w[kGateBias].defined(),
                    "tiled_mlp: gate_bias is given, but no gate");
}

}  // namespace

at::Tensor RunTiledMlp(const at::Tensor& x, const MlpWeights& weights, Activation activation,
                       const TileOptions& options) {
  const WeightArray w = {weights.gate,      weights.up,      weights.down,
                         weights.gate_bias, weights.up_bias, weights.down_bias};
  const int64_t widest = w[kUp].defined() ? w[kUp].size(0) : 0;
  const TilePlan plan = PlanCall(x, widest, /*gradients_held=*/1, options);
  const at::DeviceType device = x.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device);
  CheckWeights(x, w, casts);
  if (plan.tiles.empty()) return RunUntiled(x, w, activation);

  const Job job{activation, options, plan.tiles,
                casts ? at::autocast::get_autocast_dtype(device) : x.scalar_type()};
  std::vector<at::Tensor> inputs = {x};
  inputs.insert(inputs.end(), w.begin(), w.end());
  base::NodePointer<TiledMlpBackward> node;
  if (torch::autograd::compute_requires_grad(at::TensorList(inputs)))
    node = base::MakeNode<TiledMlpBackward>(x, w, job);
  const at::Tensor y = [&] {
    const at::NoGradGuard no_grad;
    return RunForward(job, x.detach(), w);
  }();
  if (node != nullptr) torch::autograd::set_history(y, node);
  return y;
}

}  // namespace lockstep::tiled_mlp
