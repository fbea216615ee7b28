#include "tiled_mlp/tiled.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/alias.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/torch/replay.h"
#include "base/torch/runs_again.h"
#include "base/torch/values.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "tiled_mlp/leaves.h"
#include "tiled_mlp/rows.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"

// One autograd node serves all tiles. Its inputs are x and the weights, so autograd reaches each
// weight by one edge and walks it once. Forward runs the body on each tile without a graph and
// keeps only x. Backward runs it again, tile by tile, on its own leaves (leaves.h). A leaf is a
// detached alias that shares a weight's memory but not its hooks, and adds a tile's share as soon
// as it exists. The engine sees one node that returns one gradient for each input.
//
// x and the weights are saved before anything is computed (a torch::autograd::Function saves
// afterwards). A checkpointed region recomputes until it has its last saved tensor. So it stops
// before the tiles if nothing after them in the region saves tensors. The test is
// early_stop_test.cc.

namespace lockstep::tiled_mlp {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The properties of an output of the body, except its number of rows.
struct OutputKind {
  explicit OutputKind(const at::Tensor& output)
      : sizes(output.sizes().slice(1).vec()), dtype(output.scalar_type()) {}
  bool operator==(const OutputKind&) const = default;
  bool carries_gradient() const { return torch::autograd::isDifferentiableType(dtype); }

  std::vector<int64_t> sizes;  // of a row
  at::ScalarType dtype;
};

// The data that forward leaves for backward, besides tensors.
struct Job {
  TileBody body;
  TileOptions options;
  std::vector<TileRange> tiles;
  std::vector<base::RandomState> random_states;  // before each tile; none: nothing was drawn
  std::optional<base::Autocast> autocast;
  std::vector<OutputKind> outputs;  // of the body, by its first tile
};

// --- Forward -------------------------------------------------------------------------------------

std::vector<at::Tensor> RunBody(const Job& job, size_t tile, const at::Tensor& rows,
                                at::TensorList weights) {
  // Not around the gradients: those are computed in the dtypes that the body left behind.
  const base::AutocastScope autocast(*job.autocast);
  const base::RunsAgainScope runs_again("function of tiled_mlp");
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

// Throws where the outputs are not those of the first tile, but for their rows. `pass`: "", or " in
// backward".
void CheckOutputs(const Job& job, size_t tile, const std::vector<at::Tensor>& outputs,
                  const char* pass) {
  CheckRows(outputs, job.tiles[tile].size());
  if (job.outputs.empty()) return;  // this is the first
  constexpr const char* kAdvice =
      "; the function must do the same for every tile, in forward and in backward";
  TORCH_CHECK_VALUE(outputs.size() == job.outputs.size(), "tiled_mlp: the function returned ",
                    job.outputs.size(), " tensors for the first tile and ", outputs.size(),
                    " for tile ", tile + 1, pass, kAdvice);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const OutputKind& first = job.outputs[i];
    TORCH_CHECK_VALUE(
        OutputKind(outputs[i]) == first, "tiled_mlp: a row of output ", i, " of the function is ",
        outputs[i].scalar_type(), " ", outputs[i].sizes().slice(1), " for tile ", tile + 1, pass,
        ", but ", first.dtype, " ", at::IntArrayRef(first.sizes), " for the first tile", kAdvice);
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
    if (job.options.preserve_rng) job.random_states.push_back(base::RandomState::Of(x));
    std::vector<at::Tensor> parts = RunBody(job, t, Rows(x, NumLeadingDims(x), range), weights);
    CheckOutputs(job, t, parts, "");
    for (size_t i = 0; t == 0 && i < parts.size(); ++i) job.outputs.emplace_back(parts[i]);
    if (job.tiles.size() == 1 && !SharesMemory(parts[0], x, weights) && parts.size() == 1) {
      outputs = {parts[0].contiguous()};
      break;
    }
    for (size_t i = 0; t == 0 && i < parts.size(); ++i) {
      std::vector<int64_t> sizes = parts[i].sizes().vec();
      sizes[0] = num_rows;
      outputs.push_back(at::empty(sizes, parts[i].options()));
    }
    for (size_t i = 0; i < parts.size(); ++i)
      outputs[i].narrow(0, range.begin, range.size()).copy_(parts[i]);
  }
  if (job.options.preserve_rng && job.random_states.front() == base::RandomState::Of(x))
    job.random_states.clear();
  for (at::Tensor& output : outputs) output = WithLeading(x, output);
  return outputs;
}

std::vector<int64_t> VersionsOf(const at::Tensor& x, at::TensorList weights) {
  std::vector<int64_t> versions = {x._version()};
  for (const at::Tensor& weight : weights) versions.push_back(weight._version());
  return versions;
}

// Throws if the body changed its arguments: backward of a tile runs it again on them.
void CheckUnchanged(const std::vector<int64_t>& before, const std::vector<int64_t>& after) {
  for (size_t i = 0; i < before.size(); ++i) {
    TORCH_CHECK_VALUE(before[i] == after[i], "tiled_mlp: the function changes ",
                      i == 0 ? "its tile of x" : absl::StrCat("weight ", i - 1),
                      " in place, but backward runs it again on what it was given; use an operator "
                      "that is not in place");
  }
}

// Throws if `outputs` depend on a trained tensor other than through `arguments`.
void CheckNothingElseIsUsed(at::TensorList outputs, const std::vector<at::Tensor>& arguments) {
  torch::autograd::edge_list roots;
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) roots.push_back(torch::autograd::impl::gradient_edge(output));
  }
  CheckNothingElseIsTrained(roots, arguments);
}

// --- Backward ------------------------------------------------------------------------------------

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
    std::vector<WeightGradient> sums;
    for (const at::Tensor& weight : weights) sums.emplace_back(weight, job.options.accumulate_fp32);
    const Leaves leaves;
    std::vector<at::Tensor> inputs;  // of the body: the trained ones are leaves
    for (size_t i = 0; i < weights.size(); ++i)
      inputs.push_back(
          task_should_compute_output(i + 1)
              ? leaves.On(weights[i], [&sum = sums[i]](at::Tensor g) { sum.Add(std::move(g)); })
              : weights[i].detach());
    at::Tensor x_gradient;  // [rows, hidden]
    if (task_should_compute_output(0))
      x_gradient = at::empty({job.tiles.back().end, x.size(-1)}, x.options());

    const bool skip_zeros = job.options.skip_zero_gradients.value_or(base::MayReadValues(x));
    bool skipped = false;
    std::optional<base::RandomScope> random;
    if (!job.random_states.empty()) random.emplace(job.random_states.front());
    for (size_t t = 0; t < job.tiles.size(); ++t) {
      const TileRange& range = job.tiles[t];
      std::vector<at::Tensor> parts;  // of the outputs' gradients
      for (const at::Tensor& gradient : gradients)
        parts.push_back(gradient.defined() ? Rows(gradient, NumLeadingDims(x), range) : gradient);
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
      RunTileBackward(t, x, inputs, parts, x_part);
    }

    variable_list results;
    results.push_back(x_gradient.defined() ? x_gradient.view(x.sizes()) : at::Tensor());
    for (size_t i = 0; i < weights.size(); ++i)
      results.push_back(task_should_compute_output(i + 1) ? sums[i].Take(skipped) : at::Tensor());
    return results;
  }

  // The leaves among `weights` get the tile's share, and `x_part` x's.
  void RunTileBackward(size_t tile, const at::Tensor& x, const std::vector<at::Tensor>& weights,
                       const std::vector<at::Tensor>& gradients, at::Tensor& x_part) {
    if (job.options.stats) ++job.options.stats->backward_tiles;
    if (!job.random_states.empty()) job.random_states[tile].Restore();
    at::Tensor rows = Rows(x, NumLeadingDims(x), job.tiles[tile]);
    const Leaves leaves;
    bool x_is_reached = false;
    if (x_part.defined()) {
      rows = leaves.On(rows, [&](const at::Tensor& gradient) {
        x_part.copy_(gradient);
        x_is_reached = true;
      });
    }
    torch::autograd::edge_list roots;
    variable_list root_gradients;
    {
      const at::AutoGradMode with_graph(true);
      const std::vector<at::Tensor> outputs = RunBody(job, tile, rows, weights);
      CheckOutputs(job, tile, outputs, " in backward");
      size_t next = 0;  // among the outputs that can carry a gradient
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!job.outputs[i].carries_gradient()) continue;
        const at::Tensor& gradient = gradients[next++];
        if (!gradient.defined() || !outputs[i].requires_grad()) continue;
        roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
        root_gradients.push_back(gradient);
      }
    }  // the outputs go; their graph is held by its roots
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& weight : weights) {
      if (weight.grad_fn() != nullptr) inputs.push_back(weight);
    }
    if (x_part.defined()) inputs.push_back(std::move(rows));
    CheckNothingElseIsTrained(roots, inputs);
    inputs.clear();
    if (!roots.empty())
      torch::autograd::Engine::get_default_engine().execute(
          roots, root_gradients, /*keep_graph=*/false, /*create_graph=*/false,
          /*accumulate_grad=*/true, /*outputs=*/{});
    if (x_part.defined() && !x_is_reached) x_part.zero_();
  }

  SavedVariable x_;
  std::vector<SavedVariable> weights_;
};

// --- Both ----------------------------------------------------------------------------------------

int64_t Widest(at::TensorList weights) {
  int64_t widest = 0;
  for (const at::Tensor& weight : weights) {
    for (const int64_t size : weight.sizes()) widest = std::max(widest, size);
  }
  return widest;
}

// Runs the body once, with the graph that autograd makes. The body gets aliases of x and of the
// weights, so that a trained tensor which it takes from elsewhere is an error here as in a tile.
std::vector<at::Tensor> RunUntiled(const TileBody& body, const at::Tensor& x,
                                   at::TensorList weights) {
  const int64_t num_rows = CountRows(x, NumLeadingDims(x));
  const bool with_gradients = torch::autograd::compute_requires_grad(x, weights);
  std::vector<int64_t> versions;
  if (with_gradients) versions = VersionsOf(x, weights);
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& weight : weights) aliases.push_back(at::alias(weight));
  const at::Tensor rows = x.reshape({num_rows, x.size(-1)});
  std::vector<at::Tensor> outputs = [&] {
    const base::RunsAgainScope as_in_tiles("function of tiled_mlp");
    return body(rows, aliases);
  }();
  CheckRows(outputs, num_rows);
  if (with_gradients) CheckUnchanged(versions, VersionsOf(x, weights));
  aliases.push_back(rows);
  CheckNothingElseIsUsed(outputs, aliases);
  for (at::Tensor& output : outputs) output = output.reshape(SizesWithLeading(x, output));
  return outputs;
}

}  // namespace

std::vector<at::Tensor> RunTiled(const TileBody& body, const at::Tensor& x, at::TensorList weights,
                                 const TileOptions& options) {
  const TilePlan plan = PlanCall(x, Widest(weights), /*gradients_held=*/4.0 / 3, options);
  if (plan.tiles.empty()) return RunUntiled(body, x, weights);

  Job job{.body = body,
          .options = options,
          .tiles = plan.tiles,
          .random_states = {},
          .autocast = base::Autocast::Now().WithoutCache(),
          .outputs = {}};
  const bool with_gradients = torch::autograd::compute_requires_grad(x, weights);
  base::NodePointer<TiledBackward> node;
  if (with_gradients) node = base::MakeNode<TiledBackward>(x, weights);
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& weight : weights) aliases.push_back(weight.detach());
  std::vector<int64_t> versions;
  if (with_gradients) versions = VersionsOf(x, weights);
  std::vector<at::Tensor> outputs;
  {
    // Where nothing is trained the body runs as it would alone, to see whether that is so.
    const at::AutoGradMode mode(at::GradMode::is_enabled() && !with_gradients);
    job.options.preserve_rng &= with_gradients;
    outputs = RunForward(job, x.detach(), aliases);
  }
  if (with_gradients) CheckUnchanged(versions, VersionsOf(x, weights));
  CheckNothingElseIsUsed(outputs, {});
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(
        !output.requires_grad(),
        "tiled_mlp: the function makes a tensor that requires a gradient, which would get none; "
        "pass it as a weight, or detach it");
    if (node != nullptr && torch::autograd::isDifferentiableType(output.scalar_type()))
      torch::autograd::set_history(output, node);
  }
  if (node != nullptr) node->job = std::move(job);
  return outputs;
}

}  // namespace lockstep::tiled_mlp
