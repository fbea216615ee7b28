#include "mimo/bridge_call.h"

#include <algorithm>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "mimo/gradients.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/variable.h"

// A call is an exchange forward, and where a gradient is wanted one backward. What travels when:
//
//   from, Start     word and rows to its destinations; word to the other lanes of its replica
//   to, Start       receives posted; word to its sources, so that they learn what it planned
//   to, Wait        words compared, rows there, lanes gathered
//   to, backward    word and rows of the gradient to the sources that want it
//   from, backward  receives posted, unless the backward before has posted them; words and rows
//                   there, lanes gathered; receives of the oldest other call posted
//
// Who wants a gradient the words of `from` say: whoever was frozen is sent none and waits for none.
// y carries a graph all the same, on every rank: which ranks run backward, and the collectives in
// it, must not hang on whose x was frozen.
//
// No rank of `to` waits for one of `from` but in Wait. No rank of `from` waits for one of `to` but
// in backward, and for what it sent two calls before to be taken. So any order of micro-batches
// that the step itself allows ends (see schedule.h). What `to` sends back is kept until the words
// of `from` say that all of it has come: waiting for it could hold up a step that has all forwards
// first. Tests: driver/lua/mimo_bridge_test.lua, mimo_errors_test.lua.

namespace lockstep::mimo {

using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Rows first, and contiguous.
at::Tensor RowsFirst(const at::Tensor& tensor, int64_t dim) {
  return tensor.detach().movedim(dim, 0).contiguous();
}

// `tensor`, rows first, with its rows on `dim`, as another tensor of the same memory: what received
// into `tensor` may live on, and must not keep y's graph. No view to autograd: y may be changed in
// place.
at::Tensor RowsOn(int64_t dim, const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return tensor.movedim(0, dim);
}

bool Contains(const std::vector<int32_t>& ranks, int32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool AnyOf(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
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
    try {
      TORCH_CHECK(!at::GradMode::is_enabled(),
                  "mimo: a bridge's gradient has no gradient of its own; call backward without "
                  "create_graph");
      const at::NoGradGuard no_grad;
      return call_->RunBackward(gradients);
    } catch (const c10::Error& error) {
      call_->state->set_failure(error.what_without_backtrace());
      call_->ForgetGradient(error.what_without_backtrace());
      throw;
    }
  }

 private:
  std::shared_ptr<Call> call_;
  bool ran_ = false;
};

}  // namespace

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
  word.layout = state->layout;
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
  for (const int32_t peer : state->siblings) AddPeer(peers, peer, rank);
  std::vector<int32_t> not_heard;  // the first call may have heard some already
  for (const int32_t peer : peers) {
    if (!Contains(forward->peers(), peer)) not_heard.push_back(peer);
  }
  forward->ReceiveWords(not_heard);
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
    TORCH_CHECK(word.layout == state->layout, "mimo: bridge ", link.name, ", call ", number, ": ",
                link.Describe(link.rank), " and ", who,
                " made this bridge with different topologies, or another dim; give every rank the "
                "same sizes, ranks and order of modules, and the same dim");
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
    const int32_t peer = forward->peers()[i];
    std::vector<bool> flags;
    for (int64_t t = 0; t < word.num_tensors; ++t)
      flags.push_back(word.tensors[t].wants_gradient != 0);
    // They gather the gradient together: one that does not come would be waited for.
    TORCH_CHECK(
        !Contains(state->siblings, peer) || flags == wants, "mimo: bridge ", link.name, ", call ",
        number, ": ", link.Describe(link.rank), " and ", who,
        " hold the same replica, but x requires grad on one of them alone; freeze the tower "
        "on all ranks of a replica, or on none");
    if (Contains(plan->sources, peer)) source_wants[peer] = std::move(flags);
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
  const bool is_recorded = at::GradMode::is_enabled();
  std::vector<at::Tensor> results;
  if (state->on_to) {
    CheckWords();
    const at::NoGradGuard no_grad;
    forward->WaitForReceives();
    for (at::Tensor& output : outputs) {
      if (state->to_lanes != nullptr && !plan->local.has_value())
        GatherLanes(*state->to_lanes, plan->forward.gather_parts, output);
      // A part of x stays a view of it, which torch refuses to change in place.
      results.push_back(plan->local.has_value() ? output.movedim(0, dim) : RowsOn(dim, output));
    }
    owes_gradient = std::any_of(source_wants.begin(), source_wants.end(),
                                [](const auto& each) { return AnyOf(each.second); });
    outputs.clear();
    if (owes_gradient && !is_recorded) {
      const std::string text = absl::StrCat(
          "x requires grad, but ", state->link().Describe(state->link().rank), " takes y of call ",
          number, " under no_grad; run the call under grad mode, or under no_grad, on every rank");
      ForgetGradient(text);
      TORCH_CHECK_VALUE(false, "mimo: bridge ", state->link().name, ": ", text);
    }
  } else {
    for (size_t i = 0; i < tensors.size(); ++i)
      results.push_back(RowsOn(dim, NewRows(0, i, tensors[i].device())));
  }

  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < wants.size(); ++i) {
    if (wants[i]) inputs.push_back(tensors[i]);
  }
  tensors.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    if (torch::autograd::isDifferentiableType(results[i].scalar_type()))
      differentiable.push_back(i);
  }
  if (differentiable.empty() || !is_recorded) return results;
  if (owes_gradient || !inputs.empty()) state->without_backward.insert(number);
  // The node keeps this call, and is kept by y.
  const auto node = std::shared_ptr<BridgeBackward<Call>>(
      new BridgeBackward<Call>(shared_from_this()), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const size_t i : differentiable) torch::autograd::set_history(results[i], node);
  if (!state->on_to && !inputs.empty()) state->without_gradient.push_back(weak_from_this());
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
  // Autograd may hand the same memory to a parameter's gradient, and add the next micro-batch's to
  // it, or the script scale it, while it is still being sent.
  const bool is_shared =
      gradient.defined() && (gradient.use_count() > 1 || gradient.storage().use_count() > 1);
  at::Tensor rows =
      gradient.defined()
          ? RowsFirst(gradient, state->options().dim)
          : NewRows(plan->backward.send_shard.size(), tensor, state->options().device).zero_();
  if (is_shared && rows.is_alias_of(gradient)) rows = rows.clone();
  CheckAlikeOverTp(rows, tensor);
  if (state->to_context == nullptr || rows.numel() == 0) return rows;
  if (gradient.defined() && rows.is_alias_of(gradient)) rows = rows.clone();
  std::vector<at::Tensor> sums = {rows.to(SumType(rows.scalar_type()))};
  state->to_context->allreduce(sums)->wait();
  return sums[0].to(rows.scalar_type());
}

// Throws on every tp rank of a cp coordinate where the gradient of y differs between them.
void Bridge::Pending::Call::CheckAlikeOverTp(const at::Tensor& rows, size_t tensor) const {
  if (!audits()) return;
  const int64_t tp = state->module(/*of_from=*/false).tp;
  const std::optional<int64_t> lane = LaneThatDiffers(*state->to_lanes, tp, rows);
  if (!lane.has_value()) return;
  const auto rank_of = [&](int64_t each) {
    return state->link().Describe(plan->forward.gather_ranks[static_cast<size_t>(each)]);
  };
  TORCH_CHECK(false, "mimo: bridge ", state->link().name, ", call ", number,
              ": the gradient of tensor ", tensor, " of y differs over tp, between ",
              rank_of(*lane / tp * tp), " and ", rank_of(*lane),
              "; each tp rank must have the whole gradient: where layers are divided over tp, add "
              "the gradient of their input up over tp before it reaches the bridge");
}

// On `from`: zeros in the rows that other cp ranks have sent. All of them hold x, but each sent its
// part: their gradients add up to that of one x, as reductions over dp-cp (gradients.h) take it.
void Bridge::Pending::Call::KeepOwnContext(at::Tensor& gradient) const {
  const Module& from = state->module(/*of_from=*/true);
  if (from.cp == 1) return;
  const std::vector<Range>& parts = plan->backward.gather_parts;  // lane = cp * (size of tp) + tp
  const int64_t first = state->from_lanes->getRank() / from.tp * from.tp;
  const int64_t begin = parts[static_cast<size_t>(first)].begin;
  const int64_t end = parts[static_cast<size_t>(first + from.tp - 1)].end;
  gradient.narrow(0, 0, begin).zero_();
  gradient.narrow(0, end, gradient.size(0) - end).zero_();
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
    const bool is_wanted = std::any_of(source_wants.begin(), source_wants.end(),
                                       [i](const auto& each) { return each.second[i]; });
    // Another cp rank may have to send what this one adds to the sum.
    if (!is_wanted && state->to_context == nullptr && !audits()) continue;
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
    if (source != rank && AnyOf(flags)) waiting.push_back(static_cast<int32_t>(source));
  }
  for (const int32_t source : waiting) backward->SendWord(NewWord(source), source);
  backward->StartRows(std::move(sends),
                      receives ? GradientReceives() : std::vector<Exchange::Piece>(), row_tag);
  if (!waiting.empty()) state->KeepUntilTaken(backward, waiting);
}

std::vector<at::Tensor> Bridge::Pending::Call::RunBackward(const variable_list& grads) {
  const bool receives = AnyOf(wants);
  state->without_backward.erase(number);
  owes_gradient = false;
  has_gradient = receives || state->on_to;
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
    KeepOwnContext(gradients[i]);
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
