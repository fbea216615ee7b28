#include "tiled_mlp/tiled.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "tiled_mlp/replay.h"
#include "tiled_mlp/rows.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/accumulate_grad.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"

// One autograd node for all tiles. Its inputs are x and the weights, so that autograd reaches each
// weight by one edge, and walks it once. Forward runs the body on each tile without a graph and
// keeps x alone. Backward runs it again, tile by tile, on leaves of its own: detached aliases that
// share the weights' memory but not their hooks; torch::autograd::grad gives the tile's share,
// which is added up here. What the engine sees of all this is one node that returns one gradient
// for each input.
//
// x and the weights are saved before anything is computed (a torch::autograd::Function saves
// afterwards): a checkpointed region that recomputes until the last saved tensor is there stops
// before the tiles, where what follows them in the region saves nothing. The test is
// early_stop_test.cc.

namespace lockstep::tiled_mlp {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// What forward leaves for backward, besides tensors.
struct Job {
  TileBody body;
  TileOptions options;
  std::vector<TileRange> tiles;
  std::vector<RandomState> random_states;  // before each tile; none: nothing was drawn
  std::optional<Autocast> autocast;
  std::vector<bool> used_outputs;  // whether output i of the body can carry a gradient
};

// --- Forward
// ----------------------------------------------------------------------------------------

std::vector<at::Tensor> RunBody(const Job& job, size_t tile, const at::Tensor& rows,
                                at::TensorList weights) {
  // Not around the gradients: those are computed in the dtypes that the body left behind.
  const AutocastScope autocast(*job.autocast, rows.device());
  try {
    return job.body(rows, weights);
  } catch (c10::Error& error) {
    error.add_context(absl::StrCat("tiled_mlp: in tile ", tile + 1, " of ", job.tiles.size()));
    throw;
  }
}

void CheckRows(const std::vector<at::Tensor>& outputs, int64_t rows) {
  TORCH_CHECK_VALUE(!outputs.empty(), "tiled_mlp: the function returned no tensor");
  for (size_t i = 0; i < outputs.size(); ++i) {
    TORCH_CHECK_VALUE(
        outputs[i].defined() && outputs[i].dim() >= 1 && outputs[i].size(0) == rows,
        "tiled_mlp: output ", i, " of the function is ",
        outputs[i].defined() ? absl::StrCat("[", absl::StrJoin(outputs[i].sizes(), ", "), "]")
                             : "undefined",
        " for a tile of ", rows, " rows; each output must have one row for each row of the tile");
  }
}

bool SharesMemory(const at::Tensor& output, const at::Tensor& x, at::TensorList weights) {
  return output.is_alias_of(x) ||
         std::any_of(weights.begin(), weights.end(),
                     [&](const at::Tensor& w) { return output.is_alias_of(w); });
}

// The body on each tile; its outputs in rows of one tensor each.
std::vector<at::Tensor> RunForward(Job& job, const at::Tensor& x, at::TensorList weights) {
  const int64_t num_rows = job.tiles.back().end;
  std::vector<at::Tensor> outputs;
  for (size_t t = 0; t < job.tiles.size(); ++t) {
    const TileRange& range = job.tiles[t];
    if (job.options.preserve_rng) job.random_states.push_back(RandomState::Of(x.device()));
    std::vector<at::Tensor> parts = RunBody(job, t, Rows(x, Leading(x), range), weights);
    CheckRows(parts, range.size());
    if (job.tiles.size() == 1 && !SharesMemory(parts[0], x, weights) && parts.size() == 1) {
      outputs = {parts[0].contiguous()};
      break;
    }
    for (size_t i = 0; t == 0 && i < parts.size(); ++i) {
      std::vector<int64_t> sizes = parts[i].sizes().vec();
      sizes[0] = num_rows;
      outputs.push_back(at::empty(sizes, parts[i].options()));
    }
    TORCH_CHECK_VALUE(parts.size() == outputs.size(), "tiled_mlp: the function returned ",
                      outputs.size(), " tensors for the first tile and ", parts.size(),
                      " for tile ", t + 1);
    for (size_t i = 0; i < parts.size(); ++i) {
      TORCH_CHECK_VALUE(parts[i].sizes().slice(1) == outputs[i].sizes().slice(1) &&
                            parts[i].scalar_type() == outputs[i].scalar_type(),
                        "tiled_mlp: output ", i, " of the function is ", parts[i].scalar_type(),
                        " ", parts[i].sizes(), " for tile ", t + 1, ", but ",
                        outputs[i].scalar_type(), " [rows, ...] of ", outputs[i].sizes(),
                        " for the first");
      outputs[i].narrow(0, range.begin, range.size()).copy_(parts[i]);
    }
  }
  if (job.options.preserve_rng && job.random_states.front() == RandomState::Of(x.device()))
    job.random_states.clear();
  for (at::Tensor& output : outputs) output = output.view(SizesWithLeading(x, output));
  return outputs;
}

// --- Backward
// ---------------------------------------------------------------------------------------

// A leaf of the tile's own graph on the memory of `tensor`.
at::Tensor Alias(const at::Tensor& tensor, bool requires_grad) {
  return tensor.detach().requires_grad_(requires_grad);
}

// A trained tensor that the body reached by another way than its arguments would lose its gradient.
void CheckNothingElseIsTrained(const std::vector<at::Tensor>& roots,
                               const std::vector<at::Tensor>& inputs) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> pending;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) pending.push_back(node);
  };
  for (const at::Tensor& root : roots) visit(root.grad_fn().get());
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (leaf == nullptr) continue;
    const bool known = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
      return input.is_same(leaf->variable);
    });
    TORCH_CHECK_VALUE(known, "tiled_mlp: the function uses a tensor of shape ",
                      leaf->variable.sizes(),
                      " that requires a gradient but is none of the weights given, so it would get "
                      "none; pass it as a weight, or detach it");
  }
}

// The sum of a weight's gradients over tiles.
class WeightGradient {
 public:
  WeightGradient(const at::Tensor& weight, bool accumulate_fp32)
      : weight_(weight),
        in_fp32_(accumulate_fp32 && at::isReducedFloatingType(weight.scalar_type())) {}

  void Add(at::Tensor gradient) {
    if (!gradient.defined()) return;
    if (sum_.defined()) {
      sum_.add_(gradient);
    } else if (in_fp32_) {
      sum_ = gradient.to(at::kFloat);
    } else if (gradient.is_non_overlapping_and_dense() && gradient.use_count() == 1 &&
               gradient.storage().use_count() == 1) {
      sum_ = std::move(gradient);  // nobody else has it
    } else {
      sum_ = gradient.clone();
    }
  }

  // Undefined where nothing was added, unless `zeros`.
  at::Tensor Take(bool zeros) {
    if (!sum_.defined()) return zeros ? at::zeros_like(weight_) : at::Tensor();
    return in_fp32_ ? sum_.to(weight_.scalar_type()) : std::move(sum_);
  }

 private:
  at::Tensor weight_;
  bool in_fp32_;
  at::Tensor sum_;
};

class TiledBackward final : public Node {
 public:
  TiledBackward(const at::Tensor& x, at::TensorList weights) : x_(x, /*is_output=*/false) {
    for (const at::Tensor& weight : weights) weights_.emplace_back(weight, /*is_output=*/false);
    std::vector<at::Tensor> inputs = {x};
    inputs.insert(inputs.end(), weights.begin(), weights.end());
    set_next_edges(torch::autograd::collect_next_edges(inputs));
  }

  std::string name() const override { return "TiledBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    CheckNoGraphIsMade();
    const at::Tensor x = x_.unpack().detach();
    std::vector<at::Tensor> weights;
    for (const SavedVariable& weight : weights_) weights.push_back(weight.unpack());
    return RunBackward(x, weights, gradients);
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    x_.reset_data();
    for (SavedVariable& weight : weights_) weight.reset_data();
  }

  Job job;

 private:
  variable_list RunBackward(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                            const variable_list& gradients) {
    std::vector<at::Tensor> aliases;
    std::vector<WeightGradient> sums;
    for (size_t i = 0; i < weights.size(); ++i) {
      aliases.push_back(Alias(weights[i], task_should_compute_output(i + 1)));
      sums.emplace_back(weights[i], job.options.accumulate_fp32);
    }
    at::Tensor x_gradient;  // [rows, hidden]
    if (task_should_compute_output(0))
      x_gradient = at::empty({job.tiles.back().end, x.size(-1)}, x.options());

    const bool skip_zeros = job.options.skip_zero_gradients.value_or(x.device().is_cpu());
    bool skipped = false;
    std::optional<KeepRandomState> keep;
    if (!job.random_states.empty()) keep.emplace(x.device());
    bool checked = false;
    for (size_t t = 0; t < job.tiles.size(); ++t) {
      const TileRange& range = job.tiles[t];
      std::vector<at::Tensor> parts;  // of the outputs' gradients
      for (const at::Tensor& gradient : gradients)
        parts.push_back(gradient.defined() ? Rows(gradient, Leading(x), range) : gradient);
      at::Tensor x_part =
          x_gradient.defined() ? x_gradient.narrow(0, range.begin, range.size()) : at::Tensor();
      if (skip_zeros && range.size() > 0 &&
          std::all_of(parts.begin(), parts.end(),
                      [](const at::Tensor& part) { return !part.defined() || IsZero(part); })) {
        skipped = true;
        if (job.options.stats) ++job.options.stats->skipped_tiles;
        if (x_part.defined()) x_part.zero_();
        continue;
      }
      RunTileBackward(t, x, aliases, parts, x_part, sums, !std::exchange(checked, true));
    }

    variable_list results;
    results.push_back(x_gradient.defined() ? x_gradient.view(x.sizes()) : at::Tensor());
    for (size_t i = 0; i < weights.size(); ++i)
      results.push_back(task_should_compute_output(i + 1) ? sums[i].Take(skipped) : at::Tensor());
    return results;
  }

  // Adds the tile's share to `sums` and writes x's into `x_part`.
  void RunTileBackward(size_t tile, const at::Tensor& x, const std::vector<at::Tensor>& aliases,
                       const std::vector<at::Tensor>& gradients, at::Tensor& x_part,
                       std::vector<WeightGradient>& sums, bool check) {
    if (job.options.stats) ++job.options.stats->backward_tiles;
    if (!job.random_states.empty()) job.random_states[tile].Restore();
    const at::AutoGradMode with_graph(true);
    const at::Tensor rows = Alias(Rows(x, Leading(x), job.tiles[tile]), x_part.defined());
    const std::vector<at::Tensor> outputs = RunBody(job, tile, rows, aliases);
    CheckRows(outputs, job.tiles[tile].size());

    std::vector<at::Tensor> roots, root_gradients, inputs;
    size_t next = 0;  // among the outputs that can carry a gradient
    for (size_t i = 0; i < outputs.size() && i < job.used_outputs.size(); ++i) {
      if (!job.used_outputs[i]) continue;
      const at::Tensor& gradient = gradients[next++];
      if (!gradient.defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradient);
    }
    if (rows.requires_grad()) inputs.push_back(rows);
    for (const at::Tensor& alias : aliases) {
      if (alias.requires_grad()) inputs.push_back(alias);
    }
    if (check) CheckNothingElseIsTrained(roots, inputs);
    std::vector<at::Tensor> found(inputs.size());
    if (!roots.empty()) {
      found = torch::autograd::grad(roots, inputs, root_gradients, /*retain_graph=*/std::nullopt,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    }
    const at::NoGradGuard no_graph;
    size_t next_input = 0;
    if (rows.requires_grad()) {
      const at::Tensor gradient = std::move(found[next_input++]);
      if (gradient.defined()) {
        x_part.copy_(gradient);
      } else {
        x_part.zero_();
      }
    }
    for (size_t i = 0; i < aliases.size(); ++i) {
      if (aliases[i].requires_grad()) sums[i].Add(std::move(found[next_input++]));
    }
  }

  SavedVariable x_;
  std::vector<SavedVariable> weights_;
};

// --- Both
// -------------------------------------------------------------------------------------------

int64_t Widest(at::TensorList weights) {
  int64_t widest = 0;
  for (const at::Tensor& weight : weights) {
    for (const int64_t size : weight.sizes()) widest = std::max(widest, size);
  }
  return widest;
}

std::vector<at::Tensor> RunUntiled(const TileBody& body, const at::Tensor& x,
                                   at::TensorList weights) {
  const int64_t num_rows = CountRows(x, Leading(x));
  std::vector<at::Tensor> outputs = body(x.reshape({num_rows, x.size(-1)}), weights);
  CheckRows(outputs, num_rows);
  for (at::Tensor& output : outputs) output = output.reshape(SizesWithLeading(x, output));
  return outputs;
}

}  // namespace

std::vector<at::Tensor> RunTiled(const TileBody& body, const at::Tensor& x, at::TensorList weights,
                                 const TileOptions& options) {
  const TilePlan plan = PlanCall(x, Widest(weights), /*gradients_held=*/2, options);
  if (plan.tiles.empty()) return RunUntiled(body, x, weights);

  Job job{.body = body,
          .options = options,
          .tiles = plan.tiles,
          .random_states = {},
          .autocast = Autocast::Now(x.device()),
          .used_outputs = {}};
  const bool with_gradients = torch::autograd::compute_requires_grad(x, weights);
  std::shared_ptr<TiledBackward> node;
  if (with_gradients)
    node =
        std::shared_ptr<TiledBackward>(new TiledBackward(x, weights), torch::autograd::deleteNode);
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& weight : weights) aliases.push_back(weight.detach());
  std::vector<at::Tensor> outputs;
  {
    // Where nothing is trained the body runs as it would alone, to see whether that is so.
    const at::AutoGradMode mode(at::GradMode::is_enabled() && !with_gradients);
    job.options.preserve_rng &= with_gradients;
    outputs = RunForward(job, x.detach(), aliases);
  }
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(
        !output.requires_grad(),
        "tiled_mlp: the function uses a tensor that requires a gradient but is none "
        "of the weights given, so it would get none; pass it as a weight, or detach it");
    job.used_outputs.push_back(torch::autograd::isDifferentiableType(output.scalar_type()));
    if (node != nullptr && job.used_outputs.back()) torch::autograd::set_history(output, node);
  }
  if (node != nullptr) node->job = std::move(job);
  return outputs;
}

}  // namespace lockstep::tiled_mlp
