#include <cmath>
#include <string>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "c10/util/Exception.h"
#include "sharding/fully_shard/steps.h"
#include "torch/csrc/autograd/graph_task.h"

// The work of a sharded model between steps: whole values, and the norm of its gradients.

namespace lockstep::sharding {

// The ends of passes and reductions go wrong where ranks train different parameters.
Terms Steps::TermsOf(Action action, size_t unit_index, const std::string& given) {
  Terms terms;
  if (!turns_.has_value()) return terms;
  if (action == Action::kReduce) terms.flags = unit(unit_index).HaveGradients();
  base::Hash hash;
  hash.AddText(given);
  terms.hash = hash.value();
  if (!given.empty()) {
    terms.lines = [given] { return given; };
  }
  if (action != Action::kFinish && action != Action::kReduce) return terms;
  for (size_t u = 0; u < units_.size(); ++u) {
    for (size_t i = 0; i < unit(u).num_parameters(); ++i) hash.Add(unit(u).is_trained(i) ? 2 : 1);
  }
  terms.hash = hash.value();
  terms.lines = [this, given] {
    std::string lines = given;
    for (size_t u = 0; u < units_.size(); ++u) {
      for (size_t i = 0; i < unit(u).num_parameters(); ++i) {
        absl::StrAppend(&lines, "\n\"", unit(u).parameter_name(i), "\" is ",
                        unit(u).is_trained(i) ? "trained" : "frozen");
      }
    }
    return lines;
  };
  return terms;
}

// Nothing but a script writes to gathered parameters: optimizers work on shards.
void Steps::CheckUnchanged() {
  if (full_depth_ > 0) return;
  for (Unit& unit : units_) unit.flat->CheckUnchanged();
}

void Steps::BeginFull() {
  if (full_depth_ > 0) {
    ++full_depth_;
    return;
  }
  for (const Unit& unit : units_) {
    TORCH_CHECK(unit.depth == 0 && torch::autograd::get_current_graph_task_id() == -1,
                "fully_shard: all parameters cannot be gathered within forward or backward; call "
                "model:full outside of them");
  }
  CheckUnchanged();
  if (must_recover_) Recover();
  for (Unit& unit : units_) {
    unit.is_idle = false;
    unit.flat->Reshard();
    unit.flat->MastersMayHaveChanged();
    unit.flat->set_gathers_whole(true);
  }
  for (size_t u = 0; u < units_.size(); ++u) {
    if (unit(u).num_parameters() == 0) continue;
    Do(Action::kGather, u, Phase::kUpdate);
    unit(u).FinishGather();
  }
  ++full_depth_;
}

void Steps::EndFull() {
  if (--full_depth_ > 0) return;
  for (Unit& unit : units_) {
    if (unit.flat->is_gathered()) {
      unit.flat->WriteBack();
      unit.flat->Reshard();
    }
    unit.flat->set_gathers_whole(false);
  }
  knows_scales_ = false;
  LeaveMasters();
  root_pool_.Trim();
  pool_.Trim();
}

at::Tensor Steps::ClipGradNorm(double max_norm, double p) {
  TORCH_CHECK_VALUE(max_norm > 0 && p > 0,
                    "fully_shard: max_norm and the norm's exponent must be "
                    "above 0, not ",
                    max_norm, " and ", p);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  at::ScalarType dtype = at::kFloat;
  for (const Unit& unit : units_) {
    for (size_t i = 0; i < unit.flat->num_parameters(); ++i) {
      const at::Tensor& gradient = unit.flat->shard(i).grad();
      if (!gradient.defined()) continue;
      // A rank whose parts are all empty returns the norm in the others' dtype.
      if (gradient.scalar_type() == at::kDouble) dtype = at::kDouble;
      if (gradient.numel() > 0) gradients.push_back(gradient);
    }
  }
  const bool is_max = std::isinf(p);
  const c10::Device device = pool_.device();
  at::Tensor total = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device));
  if (!gradients.empty()) {
    std::vector<at::Tensor> norms;
    for (const at::Tensor& gradient : gradients)
      norms.push_back(at::linalg_vector_norm(gradient, p, std::nullopt, false, dtype));
    const at::Tensor all = at::stack(norms).to(at::kDouble).to(device);
    total = is_max ? all.max() : all.pow(p).sum();
  }
  Do(Action::kNorm, 0, Phase::kUpdate, absl::StrCat("max_norm ", max_norm, ", p ", p));
  if (groups_.gather != nullptr) {
    c10d::AllreduceOptions reduction;
    if (is_max) reduction.reduceOp = c10d::ReduceOp::MAX;
    std::vector<at::Tensor> tensors = {total};
    groups_.gather->allreduce(tensors, reduction)->wait();
  }
  if (!is_max) total = total.pow(1 / p);
  at::Tensor scale = (max_norm / (total + 1e-6)).clamp_max(1.0);
  // One wait for the norm where the gradients are in host memory.
  if (!gradients.empty()) scale = scale.to(gradients[0].device());
  for (at::Tensor& gradient : gradients) gradient.mul_(scale.to(gradient.options()));
  return total.to(dtype);
}

std::vector<at::Tensor> Steps::GatherWhole(size_t u, const std::vector<at::Tensor>& pieces) {
  if (unit(u).num_parameters() == 0) return {};
  CheckUnchanged();
  Do(Action::kExport, u, Phase::kUpdate);
  return unit(u).GatherWhole(pieces);
}

}  // namespace lockstep::sharding
