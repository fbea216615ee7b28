#include "mimo/bridge.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "mimo/bridge_state.h"
#include "mimo/edge_plan.h"
#include "mimo/exchange.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"

// A call is an exchange forward, and where a gradient is wanted one backward. What travels when:
//
//   from, Start     word and rows to its destinations
//   to, Start       receives posted; word to its sources, so that they learn what it planned
//   to, Wait        words compared, rows there, lanes gathered
//   to, backward    word and rows of the gradient to the sources that want it
//   from, backward  receives posted, unless the backward before has posted them; words and rows
//                   there, lanes gathered; receives of the oldest other call posted
//
// No rank of `to` waits for one of `from` but in Wait. No rank of `from` waits for one of `to` but
// in backward, and for what it sent two calls before to be taken. So any order of micro-batches
// that the step itself allows ends (see schedule.h). What `to` sends back is kept until the words
// of `from` say that all of it has come: waiting for it could hold up a step that has all forwards
// first. Tests: driver/lua/mimo_bridge_test.lua, mimo_errors_test.lua.

namespace lockstep::mimo {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr size_t kUnsettledCalls = 2;  // that this rank is ahead of those that it sends to

}  // namespace

// --- A call
// --------------------------------------------------------------------------------------

struct Bridge::Pending::Call : std::enable_shared_from_this<Bridge::Pending::Call> {
  std::shared_ptr<State> state;
  int64_t number = 0;
  std::string samples;
  std::shared_ptr<const EdgePlan> plan;
  uint64_t fingerprint = 0;  // of the plan and the samples
  uint64_t row_tag = 0;      // of these and the tensors' specs: rows that do not fit never meet
  std::shared_ptr<Exchange> forward, backward;
  std::vector<at::Tensor> tensors;                    // on `from`
  std::vector<bool> wants;                            // on `from`: whose gradient this rank wants
  std::vector<at::Tensor> outputs;                    // on `to`: rows first
  std::vector<at::Tensor> gradients;                  // on `from`: rows first
  std::map<int64_t, std::vector<bool>> source_wants;  // on `to`, of sources, this rank included
  std::vector<size_t> differentiable;                 // outputs of the node
  bool settled = false;
  bool waited = false;
  bool owes_gradient = false;  // a source waits for it
  bool has_gradient = false;   // on `from`: backward has come

  ~Call() {
    if (state == nullptr || state->same_grid) return;
    // Memory that a peer may still write to.
    if (!waited && forward != nullptr) state->Keep(forward);
    if (!has_gradient && backward != nullptr) state->Keep(backward);
    if (!owes_gradient && (waited || !state->on_to)) return;
    ForgetGradient(waited ? absl::StrCat("the graph of its call ", number,
                                         " is gone, and backward never came through it: did y take "
                                         "part in the loss?")
                          : absl::StrCat("its call ", number, " was started and never waited for"));
  }

  // Tells the sources that no gradient comes.
  void ForgetGradient(const std::string& text) {
    owes_gradient = false;
    waited = true;
    if (plan == nullptr || plan->sources.empty()) return;
    try {
      if (backward == nullptr)
        backward = std::make_shared<Exchange>(state->link(), Direction::kBackward, number);
      if (!backward->has_sent_word()) state->SendError(backward, text, plan->sources);
    } catch (const std::exception&) {
      // Who can be told nothing is gone, and says so itself.
    }
  }

  void SetUpFrom(const std::vector<at::Tensor>& given, const std::optional<Ownership>& ownership);
  void SetUpTo(const std::optional<Ownership>& ownership);
  void StartForward();
  void CheckWords();
  void Settle();
  std::vector<at::Tensor> Finish();
  std::vector<Exchange::Piece> GradientReceives();
  at::Tensor OutputGradient(const at::Tensor& gradient, size_t tensor);
  void SendGradient(const variable_list& grads, bool receives);
  std::vector<at::Tensor> RunBackward(const variable_list& grads);
  void PostNextGradient();

  at::Tensor NewRows(int64_t rows, size_t tensor, c10::Device device) const;
  void PostGradient();
  Word NewWord(int32_t peer) const;
  std::string InWords() const {
    return samples.empty() ? plan->rows : absl::StrCat(plan->rows, ", samples ", samples);
  }
};

namespace {

// Rows first, and contiguous.
at::Tensor RowsFirst(const at::Tensor& tensor, int64_t dim) {
  return tensor.detach().movedim(dim, 0).contiguous();
}

// Outputs: y, those that can carry a gradient. Inputs: x, those whose gradient is wanted.
template <typename Call>
class BridgeBackward final : public Node {
 public:
  explicit BridgeBackward(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  std::string name() const override { return "BridgeBackward"; }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!ran_, "mimo: backward ran a second time through call ", call_->number,
                " of a bridge; each call carries its gradient back once");
    ran_ = true;
    const at::NoGradGuard no_grad;
    return call_->RunBackward(gradients);
  }

 private:
  std::shared_ptr<Call> call_;
  bool ran_ = false;
};

}  // namespace

Bridge::Bridge(const Topology& topology, int edge, int64_t rank, const NewGroup& new_group,
               const BridgeOptions& options)
    : state_(std::make_shared<State>(topology, edge, rank, new_group, options)) {
  AllStates().push_back(state_);
}

Bridge::~Bridge() {
  if (state_->is_under_way()) {
    state_->KeepItself();
  } else {
    state_->unsettled.clear();  // which keep the state
  }
}

std::vector<std::weak_ptr<Bridge::State>>& Bridge::AllStates() {
  static auto* const states = new std::vector<std::weak_ptr<State>>();
  return *states;
}

void Bridge::FinishAll() {
  for (const std::weak_ptr<State>& each : std::exchange(AllStates(), {})) {
    const std::shared_ptr<State> state = each.lock();
    if (state == nullptr || !state->is_under_way()) continue;
    for (const auto& call : state->unsettled) call->Settle();
    state->WaitForGradients();
    state->unsettled.clear();
    state->LetGo();
  }
}

bool Bridge::State::is_under_way() const {
  const bool is_taken = std::all_of(unsettled.begin(), unsettled.end(),
                                    [](const auto& call) { return call->settled; });
  return failure_.empty() && (!is_taken || !gradients_sent_.empty());
}

Bridge::Pending Bridge::Start(const std::vector<at::Tensor>& tensors,
                              const std::optional<Ownership>& ownership,
                              const std::string& samples) {
  State& state = *state_;
  state.CheckUsable();
  auto call = std::make_shared<Pending::Call>();
  call->state = state_;
  call->number = state.num_calls++;
  call->samples = samples;
  if (state.same_grid) {
    TORCH_CHECK_VALUE(!tensors.empty(), "mimo: bridge ", state.link().name,
                      ": no tensor was given; this rank has both modules, and gives x");
    call->tensors = tensors;
    return Pending(std::move(call));
  }
  call->forward = std::make_shared<Exchange>(state.link(), Direction::kForward, call->number);
  try {
    while (state.unsettled.size() >= kUnsettledCalls) {
      state.unsettled.front()->Settle();
      state.unsettled.pop_front();
    }
    if (state.on_from) {
      call->SetUpFrom(tensors, ownership);
    } else {
      TORCH_CHECK_VALUE(tensors.empty(), "mimo: bridge ", state.link().name, ": ",
                        state.link().Describe(state.link().rank),
                        " receives, and has no x to give; pass none");
      call->SetUpTo(ownership);
    }
    call->fingerprint = call->plan->fingerprint ^ Fingerprint(samples);
    call->row_tag = call->fingerprint ^ Fingerprint(Describe(*state.specs, state.options().dim));
    const at::NoGradGuard no_grad;
    call->StartForward();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (!call->forward->has_sent_word()) state.Fail(call->forward, text);
    state.set_failure(text);
    call->waited = true;
    throw;
  }
  if (state.on_from) state.unsettled.push_back(call);
  return Pending(std::move(call));
}

std::vector<at::Tensor> Bridge::Pending::Wait() {
  TORCH_CHECK_VALUE(!std::exchange(call_->waited, true),
                    "mimo: a call of a bridge was waited for twice");
  if (call_->state->same_grid) return call_->tensors;
  try {
    return call_->Finish();
  } catch (const c10::Error& error) {
    call_->state->set_failure(error.what_without_backtrace());
    call_->ForgetGradient(error.what_without_backtrace());
    throw;
  }
}

// --- Forward
// -------------------------------------------------------------------------------------

void Bridge::Pending::Call::SetUpFrom(const std::vector<at::Tensor>& given,
                                      const std::optional<Ownership>& ownership) {
  const std::string& name = state->link().name;
  const int64_t dim = state->options().dim;
  TORCH_CHECK_VALUE(!given.empty() && given.size() <= kMaxTensors, "mimo: bridge ", name, ": ",
                    state->link().Describe(state->link().rank), " must give 1 to ", kMaxTensors,
                    " tensors, but gave ", given.size());
  std::vector<TensorSpec> specs;
  for (const at::Tensor& tensor : given) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() > dim && tensor.dim() <= kMaxDims,
                      "mimo: bridge ", name, ": x must have more dims than ", dim,
                      ", that of its rows, and at most ", kMaxDims, ", but is ",
                      tensor.defined() ? absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]")
                                       : "undefined");
    TORCH_CHECK_VALUE(tensor.device() == state->options().device, "mimo: bridge ", name,
                      ": x is on ", tensor.device().str(), ", but the bridge on ",
                      state->options().device.str());
    TORCH_CHECK_VALUE(tensor.size(dim) == given[0].size(dim), "mimo: bridge ", name,
                      ": all tensors of a call have the same rows, but dim ", dim, " is ",
                      given[0].size(dim), " and ", tensor.size(dim));
    specs.push_back({tensor.scalar_type(), tensor.sizes().vec()});
    specs.back().sizes[static_cast<size_t>(dim)] = 0;
    wants.push_back(at::GradMode::is_enabled() && tensor.requires_grad());
  }
  TORCH_CHECK_VALUE(!state->specs.has_value() || *state->specs == specs, "mimo: bridge ", name,
                    ": x is ", Describe(specs, dim), ", but was ",
                    Describe(state->specs.value_or(specs), dim),
                    " in the first call, by which both ends plan; make another bridge for it");
  state->specs = specs;
  const int64_t rows = given[0].size(dim);
  if (ownership.has_value()) {
    plan = state->PlanFor(*ownership);
    TORCH_CHECK_VALUE(rows == plan->forward.send_shard.size(), "mimo: bridge ", name, ": x has ",
                      rows, " rows on dim ", dim, ", but the samples of ",
                      state->link().Describe(state->link().rank), " have ",
                      plan->forward.send_shard.size(), " of ", plan->rows);
  } else {
    const int64_t all = rows * state->module(/*of_from=*/true).dp;
    TORCH_CHECK_VALUE(state->num_rows.value_or(all) == all, "mimo: bridge ", name, ": x has ", rows,
                      " rows on dim ", dim, ", but in the first call it was ",
                      *state->num_rows / state->module(true).dp,
                      "; where it varies, say which rows are whose (rows_per_sample)");
    state->num_rows = all;
    plan = state->PlanFor(UniformOwnership(all));
  }
  tensors = given;
}

void Bridge::Pending::Call::SetUpTo(const std::optional<Ownership>& ownership) {
  if (ownership.has_value()) plan = state->PlanFor(*ownership);
  if (!state->specs.has_value() || (plan == nullptr && !state->num_rows.has_value())) {
    // The first call: nothing can be planned before a source has said what comes.
    const auto usual = plan != nullptr ? plan : state->PlanFor(UniformOwnership(0));
    forward->ReceiveWords(usual->sources);
    const Word& word = forward->WaitForWords().front();
    std::vector<TensorSpec> specs;
    for (int64_t i = 0; i < word.num_tensors; ++i) {
      const auto& tensor = word.tensors[i];
      specs.push_back({static_cast<at::ScalarType>(tensor.dtype),
                       {tensor.sizes, tensor.sizes + tensor.num_dims}});
    }
    state->specs = specs;
    if (plan == nullptr) state->num_rows = word.num_rows;
  }
  if (plan == nullptr) plan = state->PlanFor(UniformOwnership(*state->num_rows));
}

Word Bridge::Pending::Call::NewWord(int32_t peer) const {
  Word word;
  word.call = number;
  word.fingerprint = fingerprint;
  word.num_rows = plan->ownership.num_tokens();
  word.gradients_taken = state->CountTaken(peer);
  word.set_text(InWords());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = word.tensors[word.num_tensors++];
    const TensorSpec& spec = (*state->specs)[i];
    tensor.dtype = static_cast<int64_t>(spec.dtype);
    tensor.wants_gradient = wants[i] ? 1 : 0;
    tensor.num_dims = static_cast<int64_t>(spec.sizes.size());
    std::copy(spec.sizes.begin(), spec.sizes.end(), tensor.sizes);
  }
  return word;
}

at::Tensor Bridge::Pending::Call::NewRows(int64_t rows, size_t tensor, c10::Device device) const {
  const TensorSpec& spec = (*state->specs)[tensor];
  std::vector<int64_t> sizes = spec.sizes;
  sizes.erase(sizes.begin() + state->options().dim);
  sizes.insert(sizes.begin(), rows);
  return at::empty(sizes, at::TensorOptions(spec.dtype).device(device));
}

void Bridge::Pending::Call::StartForward() {
  const int64_t rank = state->link().rank;
  std::vector<int32_t> peers = plan->sources;
  for (const int32_t peer : plan->destinations) AddPeer(peers, peer, rank);
  if (forward->peers().empty()) forward->ReceiveWords(peers);
  for (const int32_t peer : peers) forward->SendWord(NewWord(peer), peer);

  std::vector<at::Tensor> given;
  for (const at::Tensor& tensor : tensors) given.push_back(RowsFirst(tensor, state->options().dim));
  std::vector<Exchange::Piece> sends, receives;
  for (size_t i = 0; i < state->specs->size(); ++i) {
    if (plan->local.has_value()) {
      outputs.push_back(given[i].narrow(0, plan->local->begin, plan->local->size()));
      continue;
    }
    at::Tensor own;  // what this rank sends to itself
    for (const RankTransfer& send : plan->forward.sends) {
      const at::Tensor rows = given[i].narrow(0, send.rows.begin, send.rows.size());
      if (send.peer == rank) own = rows;
      if (send.peer != rank) sends.push_back({rows, send.peer, static_cast<int>(i)});
    }
    if (!state->on_to) continue;
    outputs.push_back(NewRows(plan->forward.receive_shard.size(), i, state->options().device));
    for (const RankTransfer& receive : plan->forward.receives) {
      const at::Tensor rows = outputs[i].narrow(0, receive.rows.begin, receive.rows.size());
      if (receive.peer == rank) rows.copy_(own);
      if (receive.peer != rank) receives.push_back({rows, receive.peer, static_cast<int>(i)});
    }
  }
  forward->StartRows(std::move(sends), std::move(receives), row_tag);
}

// Compares what the peers planned with the plan of this rank.
void Bridge::Pending::Call::CheckWords() {
  const Link& link = state->link();
  const int64_t dim = state->options().dim;
  const std::vector<Word>& words = forward->WaitForWords();
  if (state->on_to) state->ForgetTaken(forward->peers(), words);
  for (size_t i = 0; i < words.size(); ++i) {
    const Word& word = words[i];
    const std::string who = link.Describe(forward->peers()[i]);
    TORCH_CHECK(word.fingerprint == fingerprint, "mimo: bridge ", link.name, ", call ", number,
                ": the ranks disagree about the micro-batch: ", link.Describe(link.rank), " has ",
                InWords(), "; ", who, " has ", word.text);
    if (word.num_tensors == 0) continue;
    std::vector<TensorSpec> specs;
    for (int64_t t = 0; t < word.num_tensors; ++t) {
      const auto& tensor = word.tensors[t];
      specs.push_back({static_cast<at::ScalarType>(tensor.dtype),
                       {tensor.sizes, tensor.sizes + tensor.num_dims}});
    }
    TORCH_CHECK(specs == *state->specs, "mimo: bridge ", link.name, ", call ", number, ": ",
                link.Describe(link.rank), " expects ", Describe(*state->specs, dim), ", but ", who,
                " sends ", Describe(specs, dim));
    const auto& sources = plan->sources;
    if (std::find(sources.begin(), sources.end(), forward->peers()[i]) == sources.end()) continue;
    std::vector<bool>& flags = source_wants[forward->peers()[i]];
    for (int64_t t = 0; t < word.num_tensors; ++t)
      flags.push_back(word.tensors[t].wants_gradient != 0);
  }
  if (state->on_to && state->on_from) source_wants[link.rank] = wants;
}

// On `from`: what was sent is taken, by ranks that planned the same.
void Bridge::Pending::Call::Settle() {
  if (std::exchange(settled, true)) return;
  if (!state->on_to && !has_gradient) CheckWords();  // else it has been done
  forward->WaitForSends();
}

std::vector<at::Tensor> Bridge::Pending::Call::Finish() {
  const int64_t dim = state->options().dim;
  std::vector<at::Tensor> results;
  std::vector<bool> needs(state->specs->size());  // whose y carries a gradient
  if (state->on_to) {
    CheckWords();
    const at::NoGradGuard no_grad;
    forward->WaitForReceives();
    for (at::Tensor& output : outputs) {
      if (state->to_lanes != nullptr && !plan->local.has_value())
        GatherLanes(*state->to_lanes, plan->forward.gather_parts, output);
      results.push_back(output.movedim(0, dim));
    }
    for (const auto& [source, flags] : source_wants) {
      for (size_t i = 0; i < flags.size(); ++i) needs[i] = needs[i] || flags[i];
    }
    owes_gradient = std::find(needs.begin(), needs.end(), true) != needs.end();
    outputs.clear();
  } else {
    for (size_t i = 0; i < tensors.size(); ++i)
      results.push_back(NewRows(0, i, tensors[i].device()).movedim(0, dim));
    needs = wants;
  }

  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < wants.size(); ++i) {
    if (wants[i]) inputs.push_back(tensors[i]);
  }
  tensors.clear();
  for (size_t i = 0; i < needs.size(); ++i) {
    if (needs[i]) differentiable.push_back(i);
  }
  if (differentiable.empty() || !at::GradMode::is_enabled()) return results;
  // The node keeps this call, and is kept by y.
  const auto node = std::shared_ptr<BridgeBackward<Call>>(
      new BridgeBackward<Call>(shared_from_this()), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const size_t i : differentiable) torch::autograd::set_history(results[i], node);
  if (!state->on_to) state->without_gradient.push_back(weak_from_this());
  return results;
}

// --- Backward
// ------------------------------------------------------------------------------------

// On `from`: starts to receive what is wanted.
void Bridge::Pending::Call::PostGradient() {
  if (backward != nullptr) return;
  for (size_t i = 0; i < wants.size(); ++i) {
    gradients.push_back(
        wants[i] ? NewRows(plan->backward.receive_shard.size(), i, state->options().device)
                 : at::Tensor());
  }
  backward = std::make_shared<Exchange>(state->link(), Direction::kBackward, number);
  backward->ReceiveWords(plan->destinations);
  if (!state->on_to) backward->StartRows({}, GradientReceives(), row_tag);
}

std::vector<Exchange::Piece> Bridge::Pending::Call::GradientReceives() {
  std::vector<Exchange::Piece> pieces;
  for (size_t i = 0; i < gradients.size(); ++i) {
    for (const RankTransfer& receive : plan->backward.receives) {
      if (!wants[i] || receive.peer == state->link().rank) continue;
      pieces.push_back({gradients[i].narrow(0, receive.rows.begin, receive.rows.size()),
                        receive.peer, static_cast<int>(i)});
    }
  }
  return pieces;
}

// The gradient of y on this rank of `to`, summed over cp; rows first.
at::Tensor Bridge::Pending::Call::OutputGradient(const at::Tensor& gradient, size_t tensor) {
  at::Tensor rows =
      gradient.defined()
          ? RowsFirst(gradient, state->options().dim)
          : NewRows(plan->backward.send_shard.size(), tensor, state->options().device).zero_();
  if (state->to_context == nullptr || rows.numel() == 0) return rows;
  if (gradient.defined() && rows.is_alias_of(gradient)) rows = rows.clone();
  std::vector<at::Tensor> sums = {rows};
  state->to_context->allreduce(sums)->wait();
  return rows;
}

// On `to`: sends the gradient of y to the sources that want it; what this rank itself wants it
// copies.
void Bridge::Pending::Call::SendGradient(const variable_list& grads, bool receives) {
  const int64_t rank = state->link().rank;
  if (backward == nullptr)
    backward = std::make_shared<Exchange>(state->link(), Direction::kBackward, number);
  std::vector<Exchange::Piece> sends;
  for (size_t j = 0; j < differentiable.size(); ++j) {
    const size_t i = differentiable[j];
    const at::Tensor rows = OutputGradient(grads[j], i);
    for (const RankTransfer& send : plan->backward.sends) {
      const auto flags = source_wants.find(send.peer);
      if (flags == source_wants.end() || !flags->second[i]) continue;
      const at::Tensor part = rows.narrow(0, send.rows.begin, send.rows.size());
      if (send.peer != rank) {
        sends.push_back({part, send.peer, static_cast<int>(i)});
        continue;
      }
      for (const RankTransfer& receive : plan->backward.receives) {
        if (receive.peer == rank)
          gradients[i].narrow(0, receive.rows.begin, receive.rows.size()).copy_(part);
      }
    }
  }
  std::vector<int32_t> waiting;
  for (const auto& [source, flags] : source_wants) {
    if (source != rank && std::find(flags.begin(), flags.end(), true) != flags.end())
      waiting.push_back(static_cast<int32_t>(source));
  }
  for (const int32_t source : waiting) backward->SendWord(NewWord(source), source);
  backward->StartRows(std::move(sends),
                      receives ? GradientReceives() : std::vector<Exchange::Piece>(), row_tag);
  state->KeepUntilTaken(backward, waiting);
}

std::vector<at::Tensor> Bridge::Pending::Call::RunBackward(const variable_list& grads) {
  owes_gradient = false;
  has_gradient = true;
  const bool receives = std::find(wants.begin(), wants.end(), true) != wants.end();
  if (receives) PostGradient();
  if (state->on_to) SendGradient(grads, receives);
  std::vector<at::Tensor> results;
  if (!receives) return results;
  // Words first: where the other side failed, it takes no rows.
  if (!state->on_to && !settled) CheckWords();
  backward->WaitForWords();
  Settle();
  backward->WaitForReceives();
  state->AddTaken(plan->destinations);
  for (size_t i = 0; i < wants.size(); ++i) {
    if (!wants[i]) continue;
    if (state->from_lanes != nullptr)
      GatherLanes(*state->from_lanes, plan->backward.gather_parts, gradients[i]);
    results.push_back(gradients[i].movedim(0, state->options().dim));
  }
  gradients.clear();
  // The next gradient comes while this one goes on; NCCL's receive would occupy the device.
  if (!state->on_to && !state->options().device.is_cuda()) PostNextGradient();
  return results;
}

// Of the oldest call whose graph is still there.
void Bridge::Pending::Call::PostNextGradient() {
  auto& calls = state->without_gradient;
  while (!calls.empty()) {
    const std::shared_ptr<Call> call = calls.front().lock();
    if (call != nullptr && !call->has_gradient) {
      call->PostGradient();
      return;
    }
    calls.pop_front();
  }
}

}  // namespace lockstep::mimo
