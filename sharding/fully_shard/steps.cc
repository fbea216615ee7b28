#include "sharding/fully_shard/steps.h"

#include <algorithm>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "absl/status/statusor.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/variable.h"

// The order of collectives is the same on every rank. Gathers are issued by calls of units
// and by nodes of backward, which one thread runs in an order that the graph alone decides. Forward
// prefetches a unit by the order of the pass before, and backward by the order of its own pass. All
// ranks have both in common: they have compared each of the collectives. Whether a graph still
// exists decides nothing, since Lua frees it at another time on each rank. A reduction is issued
// when backward leaves the unit, at the nodes that made the unit's inputs. A unit without such
// inputs is reduced when its last gradient has come, and all others at the end of backward. Every
// pass and every backward end with a turn of their own: a rank that did less waits there for the
// others, or gets an error.
//
// A unit that has been used stays gathered until another one needs its place. A module that is
// called several times in a row, for tiles or chunks say, is gathered once, and backward finds the
// last unit of forward still there.

namespace lockstep::sharding {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

bool InBackward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

struct Steps::Call : std::enable_shared_from_this<Steps::Call> {
  Call(std::shared_ptr<Steps> owner, size_t of, std::shared_ptr<Pass> in)
      : steps(std::move(owner)), unit(of), pass(std::move(in)) {}

  std::shared_ptr<Steps> steps;
  size_t unit;
  std::shared_ptr<Pass> pass;
  bool has_boundary = false;  // backward sees where it leaves the unit
  bool has_begun = false;
};

namespace {

// Before a node that made an output of the unit: its backward begins. Before a node that made an
// input: it is over.
class CallHook : public torch::autograd::FunctionPreHook {
 public:
  CallHook(std::shared_ptr<Steps::Call> call, bool begins)
      : call_(std::move(call)), begins_(begins) {}

  bool BeginsUnit(size_t unit) const { return begins_ && call_->unit == unit; }

  variable_list operator()(const variable_list& gradients) override {
    const std::shared_ptr<Steps> steps = call_->steps;
    if (begins_) {
      steps->BeginBackward(*call_);
    } else {
      steps->EndBackward(*call_);
    }
    return gradients;
  }

 private:
  std::shared_ptr<Steps::Call> call_;
  bool begins_;
};

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<Steps> steps, size_t unit, size_t parameter)
      : steps_(std::move(steps)), unit_(unit), parameter_(parameter) {}

  void operator()(const at::Tensor&) override {
    if (const std::shared_ptr<Steps> steps = steps_.lock()) steps->TakeGradient(unit_, parameter_);
  }

 private:
  std::weak_ptr<Steps> steps_;
  size_t unit_, parameter_;
};

// Lives as long as one backward. Tells whether that ended without its final callback.
struct BackwardToken {
  explicit BackwardToken(std::weak_ptr<Steps> of) : steps(std::move(of)) {}
  ~BackwardToken() {
    if (is_done) return;
    if (const std::shared_ptr<Steps> owner = steps.lock()) owner->AbandonBackward();
  }
  std::weak_ptr<Steps> steps;
  bool is_done = false;
};

c10::Device DeviceOf(const std::vector<UnitParameters>& units) {
  for (const UnitParameters& unit : units) {
    if (!unit.parameters.empty()) return unit.parameters[0].tensor.device();
  }
  return c10::kCPU;
}

}  // namespace

Steps::Steps(const std::vector<UnitParameters>& units, const ShardGroups& groups,
             std::shared_ptr<Collective> control, FullyShardOptions options)
    : groups_(groups),
      control_(std::move(control)),
      options_(std::move(options)),
      root_pool_(DeviceOf(units)),
      pool_(DeviceOf(units)) {
  std::vector<std::string> names;
  for (const UnitParameters& unit : units) names.push_back(unit.name);
  int64_t largest = 0, largest_gradient = 0;
  for (const UnitParameters& unit : units) {
    Unit& made = units_.emplace_back();
    made.flat = std::make_unique<FlatUnit>(unit.name, unit.parameters, groups_, options_.unit,
                                           units_.size() == 1 ? &root_pool_ : &pool_);
    stats_.shard_bytes += made.flat->shard_bytes();
    stats_.float8_weights += static_cast<int64_t>(made.flat->num_float8());
    if (units_.size() == 1) continue;
    largest = std::max(largest, made.flat->gathered_bytes());
    largest_gradient = std::max(largest_gradient, made.flat->gradient_bytes());
  }
  stats_.largest_unit_bytes = largest;
  stats_.root_bytes = units_[0].flat->gathered_bytes();
  std::vector<int64_t> sizes = {largest};
  // Gradients share the buffers of weights, unless that wastes half of one, as an adapter's would.
  if (largest_gradient > largest || 2 * largest_gradient <= largest)
    sizes.push_back(largest_gradient);
  std::sort(sizes.begin(), sizes.end());
  pool_.set_sizes(std::move(sizes));
  has_float8_ = stats_.float8_weights > 0;
  forward_ = NewPass();
  if (control_ == nullptr) return;
  turns_.emplace(control_.get(), std::move(names), options_.joins);
  // Where there are replicas, other ranks compare than those that gather.
  exchanges_ = control_->CanMoveParts() && options_.exchange_bytes > 0 && pool_.device().is_cpu() &&
               groups_.gather != nullptr && groups_.gather->getSize() == control_->size();
}

Steps::~Steps() {
  for (Unit& unit : units_) {
    for (size_t i = 0; i < unit.flat->num_parameters(); ++i)
      torch::autograd::impl::set_post_acc_grad_hooks(unit.flat->parameter(i), nullptr);
  }
}

std::shared_ptr<Steps::Pass> Steps::NewPass() const {
  return std::make_shared<Pass>(Pass{.order = {}, .has_graph = std::vector<bool>(units_.size())});
}

void Steps::WatchGradients() {
  for (size_t u = 0; u < units_.size(); ++u) {
    for (size_t i = 0; i < units_[u].flat->num_parameters(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          units_[u].flat->parameter(i), std::make_unique<GradientHook>(weak_from_this(), u, i));
    }
  }
}

FullyShardStats Steps::Stats() const {
  FullyShardStats stats = stats_;
  stats.pool_bytes = root_pool_.bytes() + pool_.bytes();
  stats.peak_pool_bytes = root_pool_.peak_bytes() + pool_.peak_bytes();
  return stats;
}

// --- Turns ---------------------------------------------------------------------------------------

void Steps::Do(Action action, size_t unit, std::optional<Phase> phase, const std::string& given) {
  const Turn wanted = {pass_, phase.value_or(InBackward() ? Phase::kBackward : Phase::kForward),
                       action, static_cast<int32_t>(unit)};
  const Terms terms = TermsOf(action, unit, given);
  bool has_come = false, is_unanimous = true;
  while (turns_.has_value()) {
    FlatUnit& flat = this->unit(unit);
    const bool has_parts = GoesWithComparison(action, flat);
    Collective::Parts parts;
    if (has_parts) parts = action == Action::kGather ? flat.PrepareGather() : flat.PrepareReduce();
    const absl::StatusOr<AgreedTurn> agreed = turns_->Agree(wanted, parts, options_.place, terms);
    is_unanimous = agreed.ok() && agreed->is_unanimous;
    has_come = has_parts && is_unanimous;
    if (has_parts && !has_come) flat.GiveUp();
    TORCH_CHECK(agreed.ok(), std::string(agreed.status().message()));
    if (agreed->turn == wanted) break;
    Join(agreed->turn);
    ++stats_.joined;
  }
  Perform(wanted, has_come, HaveGradients(wanted, is_unanimous));
}

// Returns which parameters of a unit that is reduced now have a gradient on any rank. The ranks
// exchange that where they differ in it.
std::string Steps::HaveGradients(const Turn& turn, bool is_unanimous) {
  if (turn.action != Action::kReduce) return "";
  const std::string own = unit(static_cast<size_t>(turn.unit)).HaveGradients();
  if (is_unanimous) return own;
  const absl::StatusOr<std::string> any = turns_->AnyOf(own);
  TORCH_CHECK(any.ok(), std::string(any.status().message()));
  return *any;
}

// Gloo passes each collective through two other threads. For few bytes that is most of its cost.
bool Steps::GoesWithComparison(Action action, const FlatUnit& flat) const {
  if (!exchanges_) return false;
  if (action == Action::kGather) return flat.gather_part_bytes() <= options_.exchange_bytes;
  return action == Action::kReduce && flat.reduce_part_bytes() <= options_.exchange_bytes;
}

void Steps::Perform(const Turn& turn, bool has_come, const std::string& any) {
  const auto u = static_cast<size_t>(turn.unit);
  FlatUnit& flat = unit(u);
  if (turn.action == Action::kScales) {
    ++stats_.scale_reductions;
    ReduceMagnitudes();
  } else if (turn.action == Action::kGather) {
    ++stats_.gathers;
    stats_.gather_bytes += flat.gather_part_bytes();
    has_come ? flat.TakeGather() : flat.StartGather();
  } else if (turn.action == Action::kReduce) {
    ++stats_.reductions;
    has_come ? flat.TakeReduce(any) : flat.StartReduce(any);
    reducing_ = u;
    // Gloo computes on the same cores, and a buffer is free earlier.
    if (groups_.gather == nullptr || flat.parameter(0).is_cpu()) FinishReduction();
  }
  stats_.exchanged += has_come ? 1 : 0;
}

void Steps::Join(const Turn& turn) {
  FlatUnit& flat = unit(static_cast<size_t>(turn.unit));
  if (turn.action == Action::kScales) ReduceMagnitudes();
  // Ranks gather whole values in the update alone: in model:full(fn).
  if (turn.action == Action::kGather) flat.JoinGather(/*whole=*/turn.phase == Phase::kUpdate);
  if (turn.action == Action::kReduce) {
    FinishReduction();
    flat.StartReduce(HaveGradients(turn, /*is_unanimous=*/false));
    flat.FinishReduce();
    flat.FinishDownload();
  }
}

// One collective for all float8 weights of the model.
void Steps::ReduceMagnitudes() {
  knows_scales_ = true;
  std::vector<at::Tensor> all;
  std::vector<int64_t> counts;
  for (const Unit& unit : units_) {
    counts.push_back(static_cast<int64_t>(unit.flat->num_float8()));
    if (counts.back() > 0) all.push_back(unit.flat->Magnitudes());
  }
  std::vector<at::Tensor> largest = {at::cat(all)};
  c10d::AllreduceOptions reduction;
  reduction.reduceOp = c10d::ReduceOp::MAX;
  groups_.gather->allreduce(largest, reduction)->wait();
  const std::vector<at::Tensor> parts = largest[0].split_with_sizes(counts);
  for (size_t u = 0; u < units_.size(); ++u) {
    if (counts[u] > 0) unit(u).TakeMagnitudes(parts[u]);
  }
}

// Each pass finds the scales, whatever has changed: so the ranks need not compare that.
void Steps::Gather(size_t u) {
  if (has_float8_ && !knows_scales_) Do(Action::kScales, 0);
  Do(Action::kGather, u);
}

void Steps::Obtain(size_t u) {
  FlatUnit& flat = unit(u);
  if (flat.is_gathered() || flat.num_parameters() == 0) return;
  if (!flat.is_in_flight()) Gather(u);
  flat.FinishGather();
}

void Steps::Prefetch(const std::vector<size_t>& candidates) {
  for (const size_t u : candidates) {
    FlatUnit& flat = unit(u);
    if (flat.is_gathered() || flat.is_in_flight() || flat.num_parameters() == 0) continue;
    Gather(u);
    ++stats_.prefetched;
  }
}

void Steps::PrefetchForForward(size_t u) {
  if (!turns_.has_value()) return;
  if (u != 0) {
    const auto here =
        std::find(last_order_.begin() + static_cast<std::ptrdiff_t>(cursor_), last_order_.end(), u);
    if (here == last_order_.end()) return;  // this pass is another one
    cursor_ = static_cast<size_t>(here - last_order_.begin()) + 1;
  }
  const size_t end = std::min(last_order_.size(), cursor_ + static_cast<size_t>(options_.prefetch));
  Prefetch({last_order_.begin() + static_cast<std::ptrdiff_t>(cursor_),
            last_order_.begin() + static_cast<std::ptrdiff_t>(end)});
}

void Steps::PrefetchForBackward(const Call& call) {
  if (!turns_.has_value() || options_.prefetch == 0) return;
  const std::vector<size_t>& order = call.pass->order;
  if (backward_ != call.pass) {
    backward_ = call.pass;
    back_cursor_ = order.size();
  }
  size_t here = back_cursor_;
  if (call.unit != 0) {
    while (here > 0 && order[here - 1] != call.unit) --here;
    if (here == 0) return;
    back_cursor_ = --here;
  }
  std::vector<size_t> candidates;
  while (here > 0 && candidates.size() < static_cast<size_t>(options_.prefetch)) {
    // Backward does not come to a unit without a graph.
    if (call.pass->has_graph[order[--here]]) candidates.push_back(order[here]);
  }
  Prefetch(candidates);
}

void Steps::ReshardIdle(size_t except) {
  for (size_t u = 0; u < units_.size(); ++u) {
    if (u == except || !units_[u].is_idle) continue;
    units_[u].is_idle = false;
    units_[u].flat->Reshard();
  }
}

// Frees every unit that nobody computes with, also those that were prefetched in vain.
void Steps::ReshardUnused() {
  for (Unit& unit : units_) {
    if (unit.depth > 0 || unit.calls_begun > 0 || full_depth_ > 0) continue;
    unit.is_idle = false;
    unit.flat->Reshard();
  }
}

// An optimizer may write the masters once a pass is over.
void Steps::LeaveMasters() {
  for (Unit& unit : units_) unit.flat->LeaveMasters();
}

// --- Forward -------------------------------------------------------------------------------------

void Steps::BeginForward(size_t u, const std::vector<at::Tensor>& inputs) {
  const bool recomputes = InBackward();
  if (must_recover_ && !recomputes) Recover();
  Unit& unit = units_[u];
  if (unit.depth == 0 && full_depth_ == 0) {
    // The masters may have changed since the last pass, and a fused optimizer leaves no trace.
    if (!recomputes && units_[0].depth == 0) {
      ReshardUnused();
      CheckUnchanged();
      for (const Unit& other : units_) other.flat->MastersMayHaveChanged();
      knows_scales_ = false;
    }
    if (u == 0 && !recomputes) {
      ++pass_;
      last_order_ = forward_->order;
      forward_ = NewPass();
      cursor_ = 0;
      if (turns_.has_value()) turns_->BeginPass();
    }
    ReshardIdle(u);
    unit.is_idle = false;
    Obtain(u);
    // A unit that is called outside of the root's forward tells no order.
    if (!recomputes && (u == 0 || units_[0].depth > 0)) {
      std::vector<size_t>& order = forward_->order;
      if (u != 0 && (order.empty() || order.back() != u)) {
        order.push_back(u);
        if (turns_.has_value()) turns_->Use(static_cast<int32_t>(u));
      }
      PrefetchForForward(u);
    }
  }
  if (unit.depth == 0 && at::GradMode::is_enabled()) {
    unit.inputs.clear();
    for (const at::Tensor& input : inputs) {
      if (input.requires_grad() && input.grad_fn() != nullptr)
        unit.inputs.push_back(input.grad_fn());
    }
  }
  ++unit.depth;
}

void Steps::EndForward(size_t u, const std::vector<at::Tensor>& outputs) {
  Unit& unit = units_[u];
  if (--unit.depth > 0) return;
  const bool recomputes = InBackward();
  const bool has_graph = at::GradMode::is_enabled() &&
                         std::any_of(outputs.begin(), outputs.end(), [](const at::Tensor& output) {
                           return output.requires_grad() && output.grad_fn() != nullptr;
                         });
  if (has_graph) Attach(u, outputs);
  unit.inputs.clear();
  if (full_depth_ > 0) return;
  const bool stays = u == 0 || unit.calls_begun > 0 ||
                     (has_graph && !recomputes && !options_.reshard_after_forward);
  unit.is_idle = !stays;
  unit.flat->CheckUnchanged();
  if (units_[0].depth == 0 && !recomputes) LeaveMasters();
  if (u != 0 || recomputes) return;
  if (!has_graph) ReshardUnused();
  Do(Action::kFinish, 0, Phase::kForward);
  CheckUnchanged();
}

void Steps::AbandonForward(size_t u) {
  Unit& unit = units_[u];
  if (--unit.depth > 0) return;
  unit.inputs.clear();
  if (unit.calls_begun == 0 && full_depth_ == 0) unit.is_idle = true;
}

// An output that is a view may be changed in place later. Then it has another node, and only its
// base keeps the node.
void Steps::Attach(size_t u, const std::vector<at::Tensor>& outputs) {
  // Recomputed calls belong to the pass whose backward runs.
  const std::shared_ptr<Pass>& pass = InBackward() && backward_ != nullptr ? backward_ : forward_;
  pass->has_graph[u] = true;
  const auto call = std::make_shared<Call>(shared_from_this(), u, pass);
  std::vector<base::NodePointer<Node>> begins;
  const auto add = [&](const base::NodePointer<Node>& node) {
    if (node != nullptr && std::find(begins.begin(), begins.end(), node) == begins.end())
      begins.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    add(output.grad_fn());
    if (output.is_view()) add(output._base().grad_fn());
  }
  for (const base::NodePointer<Node>& node : begins)
    node->add_pre_hook(std::make_unique<CallHook>(call, /*begins=*/true));
  for (const base::NodePointer<Node>& node : units_[u].inputs) {
    if (std::find(begins.begin(), begins.end(), node) != begins.end()) continue;
    // Backward leaves this unit before it enters the one that made the input, which takes its
    // memory. A call of the same unit needs no other memory, and comes first.
    auto& hooks = node->pre_hooks();
    const bool is_again = std::any_of(hooks.begin(), hooks.end(), [u](const auto& hook) {
      const auto* const other = dynamic_cast<const CallHook*>(hook.get());
      return other != nullptr && other->BeginsUnit(u);
    });
    hooks.insert(is_again ? hooks.end() : hooks.begin(),
                 std::make_unique<CallHook>(call, /*begins=*/false));
    call->has_boundary = true;
  }
}

// --- Backward ------------------------------------------------------------------------------------

void Steps::EnterBackward() {
  if (backward_entered_) return;
  if (must_recover_) Recover();
  backward_entered_ = true;
  const auto token = std::make_shared<BackwardToken>(weak_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback([token] {
    token->is_done = true;
    if (const std::shared_ptr<Steps> steps = token->steps.lock()) steps->FinishBackward();
  });
}

void Steps::BeginBackward(Call& call) {
  EnterBackward();
  if (call.has_begun) return;
  call.has_begun = true;
  begun_.push_back(call.shared_from_this());
  Unit& unit = units_[call.unit];
  ++unit.calls_begun;
  unit.boundaries += call.has_boundary ? 1 : 0;
  if (full_depth_ > 0) return;
  // The root has memory of its own, and the last unit of forward is the first of backward.
  if (call.unit != 0) ReshardIdle(call.unit);
  unit.is_idle = false;
  Obtain(call.unit);
  PrefetchForBackward(call);
}

void Steps::EndBackward(Call& call) {
  if (!call.has_begun) return;
  call.has_begun = false;
  Unit& unit = units_[call.unit];
  --unit.calls_begun;
  --unit.boundaries;
  if (unit.calls_begun > 0 || call.unit == 0) return;
  if (unit.depth == 0 && full_depth_ == 0) unit.flat->Reshard();
  if (sync && unit.flat->has_gradients()) Reduce(call.unit);
}

void Steps::TakeGradient(size_t u, size_t parameter) {
  EnterBackward();
  Unit& unit = units_[u];
  unit.flat->TakeGradient(parameter);
  if (!sync || unit.boundaries > 0 || !unit.flat->has_all_gradients()) return;
  // Nothing of the unit is left to compute where each of its weights has got its gradient.
  if (u != 0 && unit.depth == 0 && full_depth_ == 0 && unit.flat->all_are_trained())
    unit.flat->Reshard();
  Reduce(u);
}

void Steps::Reduce(size_t u) {
  FinishReduction();
  Do(Action::kReduce, u, Phase::kBackward);
}

void Steps::FinishReduction() {
  if (!reducing_.has_value()) return;
  unit(*std::exchange(reducing_, std::nullopt)).FinishReduce();
}

void Steps::FinishBackward() {
  for (size_t u = 0; u < units_.size(); ++u) {
    if (sync && unit(u).has_gradients()) Reduce(u);
  }
  FinishReduction();
  for (const std::shared_ptr<Call>& call : begun_) call->has_begun = false;
  for (Unit& unit : units_) {
    unit.calls_begun = unit.boundaries = 0;
    unit.flat->FinishDownload();
    unit.flat->ForgetArrivals();
  }
  begun_.clear();
  backward_ = nullptr;
  ReshardUnused();
  LeaveMasters();
  backward_entered_ = false;
  Do(Action::kFinish, 0, Phase::kBackward);
  CheckUnchanged();
}

void Steps::AbandonBackward() {
  backward_entered_ = false;
  backward_ = nullptr;
  must_recover_ = true;
  for (const std::shared_ptr<Call>& call : begun_) call->has_begun = false;
  for (Unit& unit : units_) unit.calls_begun = unit.boundaries = 0;
  begun_.clear();
}

// After a backward that threw: its gradients are a part of what they should be.
void Steps::Recover() {
  must_recover_ = false;
  reducing_.reset();
  DropGradients();
  ReshardUnused();
}

void Steps::DropGradients() {
  for (Unit& unit : units_) unit.flat->DropGradients();
}

}  // namespace lockstep::sharding
