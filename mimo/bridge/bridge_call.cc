#include "mimo/bridge/bridge_call.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "mimo/gradient/gradients.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/variable.h"

// A call is an exchange forward and, if a gradient is wanted, one backward. The messages and rows:
//
//    from, Start      plan to its destinations and to the other lanes of its replica; then rows
//    to, Start        plan to its sources
//    to, Wait         plans compared; lanes meet; rows received and gathered; sources told so
//    to, backward     lanes meet if they sum; message to the sources that want the gradient; rows
//    from, backward   messages of all destinations; lanes meet; rows received and gathered
//
// The messages of `from` say which ranks want a gradient: a frozen rank gets none and waits for
// none. y carries a graph on every rank anyway. Otherwise a frozen x would decide which ranks run
// backward and its collectives.
//
// Ranks of `to` wait for ranks of `from` only in Wait. Ranks of `from` wait for ranks of `to` in
// backward, and until the rows sent two calls before are taken. So any order of micro-batches that
// the step itself allows ends (see schedule.h), if it is the same on both sides. Gradients that
// `to` sends are kept until the messages of `from` confirm them: waiting could block a step that
// runs all forwards first.
//
// A rank always waits for a message first, and only then for rows or in a collective. A rank that
// fails sends a message to all ranks that may wait for one (State::Fail), and each of them does the
// same. Ranks on both sides send and receive in one batch, in Wait or in backward. Tests:
// driver/lualib/lockstep/mimo/mimo_bridge_test.lua, mimo_errors_test.lua, mimo_lanes_test.lua.

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

bool AnyOf(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

// Outputs: y, those that can carry a gradient. Inputs: x, those whose gradient is wanted.
template <typename Call>
class BridgeBackward final : public Node {
 public:
  explicit BridgeBackward(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  // The graph of y is gone. The call itself may live on, on `from` until its rows are taken, while
  // a sibling already waits for this rank in backward.
  ~BridgeBackward() override {
    if (!ran_) call_->ForgetGraph();
  }
  BridgeBackward(const BridgeBackward&) = delete;
  BridgeBackward& operator=(const BridgeBackward&) = delete;
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
    } catch (const std::exception& error) {
      call_->state->Fail(TextOf(error));
      throw;
    }
  }

 private:
  std::shared_ptr<Call> call_;
  bool ran_ = false;
};

}  // namespace

// --- Rows ----------------------------------------------------------------------------------------

namespace {

// Returns the rows of the ranges, one behind the other: a part of `tensor` if they are one range.
at::Tensor RowsAt(const at::Tensor& tensor, const std::vector<Range>& ranges) {
  std::vector<at::Tensor> parts;
  for (const Range& range : ranges) parts.push_back(tensor.narrow(0, range.begin, range.size()));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

int64_t CountOf(const std::vector<Range>& ranges) {
  int64_t count = 0;
  for (const Range& range : ranges) count += range.size();
  return count;
}

}  // namespace

// --- Forward -------------------------------------------------------------------------------------

void Bridge::Pending::Call::Say(Message::Kind kind, const std::vector<int32_t>& to) const {
  for (const int32_t peer : to) state->messages.Send({.kind = kind, .call = number}, peer);
}

// Before a collective of lanes: one that has failed does not come, and says so.
void Bridge::Pending::Call::MeetSiblings(Message::Kind kind,
                                         const std::vector<int32_t>& siblings) const {
  Say(kind, siblings);
  for (const int32_t sibling : siblings) state->messages.WaitFor(sibling, kind, number);
}

void Bridge::Pending::Call::ForgetGradient(const std::string& text) noexcept {
  std::vector<int32_t> waiting;
  const auto add = [&](const std::vector<int32_t>& ranks) {
    for (const int32_t rank : ranks) AddPeer(waiting, rank, state->link().rank);
  };
  if (owes_gradient) add(plan->sources);
  if (state->on_to && sums()) add(state->to_siblings);
  if (AnyOf(wants)) add(state->from_siblings);
  owes_gradient = false;
  Message message{.kind = Message::kForgotten, .call = number};
  message.set_text(text);
  for (const int32_t rank : waiting) {
    try {
      state->messages.Send(message, rank);
    } catch (const std::exception&) {
      continue;  // It is gone.
    }
  }
}

void Bridge::Pending::Call::ForgetGraph() noexcept {
  ForgetGradient(absl::StrCat("the graph of its call ", number,
                              " is gone, and backward never ran through it: did the loss use y?"));
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
  for (size_t i = 0; i < tensors.size() && !plan->local.has_value(); ++i) {
    const at::Tensor given = RowsFirst(tensors[i], state->options().dim);
    for (const RankTransfer& send : plan->forward.sends) {
      const at::Tensor rows = RowsAt(given, send.rows);
      (send.peer == rank ? own : sends)
          .push_back({rows, send.peer, static_cast<int>(i), Exchange::VersionOf(rows)});
    }
  }
  if (state->on_to) state->unreceived[number] = this;
  peers = plan->sources;
  for (const int32_t peer : plan->destinations) AddPeer(peers, peer, rank);
  for (const int32_t peer : state->from_siblings) AddPeer(peers, peer, rank);
  // Until rows have come, all ranks of `from` tell all ranks of `to` about the call: a replica of
  // `to` without rows learns their dtypes from another replica's source.
  for (const bool of_from : {true, false}) {
    if (state->rows_have_come || !(of_from ? state->on_to : state->on_from)) continue;
    for (const int32_t peer : state->ranks(of_from)) AddPeer(peers, peer, rank);
  }
  state->rows_have_come = state->rows_have_come || plan->ownership.num_tokens() > 0;
  for (const int32_t peer : peers) state->messages.Send(Plan(), peer);
  // Ranks that receive have compared the plans by then.
  if (!state->on_to) forward->StartRows(std::move(sends), {});
}

// On `to`, after the plans were compared: makes the outputs with what this rank has itself, and
// returns what it receives.
std::vector<Exchange::Piece> Bridge::Pending::Call::MakeOutputs() {
  std::vector<Exchange::Piece> receives;
  for (size_t i = 0; i < state->specs->size(); ++i) {
    const bool is_part = plan->local.has_value() && plan->local->size() > 0;
    outputs.push_back(
        is_part ? RowsFirst(tensors[i], state->options().dim)
                      .narrow(0, plan->local->begin, plan->local->size())
                : NewRows(plan->forward.receive_shard.size(), i, state->options().device));
    if (plan->local.has_value()) continue;
    for (const RankTransfer& receive : plan->forward.receives) {
      const at::Tensor rows = RowsAt(outputs[i], receive.rows);
      if (receive.peer != state->link().rank) {
        receives.push_back({rows, receive.peer, static_cast<int>(i)});
        continue;
      }
      for (const Exchange::Piece& piece : own) {
        if (piece.tensor != static_cast<int>(i)) continue;
        TORCH_CHECK(Exchange::VersionOf(piece.rows) == piece.version, "mimo: bridge ",
                    state->link().name, ", call ", number,
                    ": x was changed in place before y was "
                    "taken; give the bridge x:clone(), or leave x as it is until backward has run");
        rows.copy_(piece.rows);
      }
    }
  }
  own.clear();
  return receives;
}

// On `to`: the rows of this rank's samples.
void Bridge::Pending::Call::Receive() {
  if (received) return;
  // Rows come in the order of the calls.
  while (state->unreceived.begin()->first < number) state->unreceived.begin()->second->Receive();
  state->unreceived.erase(number);
  received = true;
  CheckPlans();
  const bool gathers = state->to_lanes != nullptr && !plan->local.has_value();
  if (gathers) MeetSiblings(Message::kRowsReady, state->to_siblings);
  const at::NoGradGuard no_grad;
  std::vector<Exchange::Piece> receives = MakeOutputs();
  forward->StartRows(std::move(sends), std::move(receives));
  forward->WaitForReceives();
  for (at::Tensor& output : outputs) {
    if (gathers) GatherLanes(*state->to_lanes, plan->forward.gather_parts, output);
  }
  Say(Message::kTaken, plan->sources);
}

// On `from`: what was sent is taken, by ranks that planned the same.
void Bridge::Pending::Call::Settle() {
  if (std::exchange(settled, true)) return;
  if (state->on_to) Receive();
  CheckPlans();
  for (const int32_t destination : plan->destinations)
    state->messages.WaitFor(destination, Message::kTaken, number);
  forward->WaitForSends();
}

std::vector<at::Tensor> Bridge::Pending::Call::Finish() {
  const int64_t dim = state->options().dim;
  const bool records = at::GradMode::is_enabled();
  std::vector<at::Tensor> results;
  if (state->on_to) {
    Receive();
    const at::NoGradGuard no_grad;
    for (at::Tensor& output : outputs) {
      // A part of x stays a view of it, which torch refuses to change in place.
      results.push_back(plan->local.has_value() ? output.movedim(0, dim) : RowsOn(dim, output));
    }
    owes_gradient = std::any_of(source_wants.begin(), source_wants.end(),
                                [](const auto& each) { return AnyOf(each.second); });
    outputs.clear();
    if (owes_gradient && !records) {
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
  if (differentiable.empty() || !records) return results;
  if (owes_gradient || !inputs.empty()) state->without_backward.insert(number);
  // The node keeps this call, and is kept by y.
  const auto node = base::MakeNode<BridgeBackward<Call>>(shared_from_this());
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const size_t i : differentiable) torch::autograd::set_history(results[i], node);
  return results;
}

// --- Backward ------------------------------------------------------------------------------------

std::vector<Exchange::Piece> Bridge::Pending::Call::GradientReceives() {
  std::vector<Exchange::Piece> pieces;
  for (size_t i = 0; i < gradients.size(); ++i) {
    for (const RankTransfer& receive : plan->backward.receives) {
      if (!wants[i] || receive.peer == state->link().rank) continue;
      at::Tensor rows;
      if (plan->needs.has_value()) {
        rows = NewRows(CountOf(receive.rows), i, state->options().device);
        returned.push_back({rows, i, &receive.rows});
      } else {
        rows = RowsAt(gradients[i], receive.rows);
      }
      pieces.push_back({rows, receive.peer, static_cast<int>(i)});
    }
  }
  return pieces;
}

// On `from`, with needs: adds up what the ranks that needed a row have returned.
void Bridge::Pending::Call::AddReturned() {
  for (const Returned& part : returned) {
    int64_t begin = 0;
    for (const Range& range : *part.ranges) {
      gradients[part.tensor]
          .narrow(0, range.begin, range.size())
          .add_(part.rows.narrow(0, begin, range.size()));
      begin += range.size();
    }
  }
  returned.clear();
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (wants[i] && plan->needs.has_value())
      gradients[i] = gradients[i].to((*state->specs)[i].dtype);
  }
}

// The gradient of y on this rank of `to`, summed over cp unless `from` does it; rows first.
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

// On `from`: sets the rows that other cp ranks have sent to zero. All cp ranks hold x, but each
// sent its part. So their gradients add up to the gradient of one x, as reductions over dp-cp
// (gradients.h) need it.
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

// On `to`: the rows of the gradient of y for the sources that want it. Copies those that this rank
// itself wants.
std::vector<Exchange::Piece> Bridge::Pending::Call::GradientSends(const variable_list& grads) {
  const int64_t rank = state->link().rank;
  if (sums()) MeetSiblings(Message::kSumReady, state->to_siblings);
  std::vector<Exchange::Piece> sends;
  for (size_t j = 0; j < differentiable.size(); ++j) {
    const size_t i = differentiable[j];
    const bool is_wanted = std::any_of(source_wants.begin(), source_wants.end(),
                                       [i](const auto& each) { return each.second[i]; });
    // Another lane may have to send what this one adds to the sum.
    if (!is_wanted && !sums()) continue;
    const at::Tensor rows = OutputGradient(grads[j], i);
    for (const RankTransfer& send : plan->backward.sends) {
      const auto flags = source_wants.find(send.peer);
      if (flags == source_wants.end() || !flags->second[i]) continue;
      const at::Tensor part = RowsAt(rows, send.rows);
      if (send.peer != rank) {
        sends.push_back({part, send.peer, static_cast<int>(i)});
        continue;
      }
      for (const RankTransfer& receive : plan->backward.receives) {
        if (receive.peer != rank) continue;
        if (plan->needs.has_value()) {
          returned.push_back({part, i, &receive.rows});
        } else {
          RowsAt(gradients[i], receive.rows).copy_(part);
        }
      }
    }
  }
  return sends;
}

// On `from`: the gradient of x, from all its destinations; `sends` go in the same batch.
std::vector<at::Tensor> Bridge::Pending::Call::TakeGradient(std::vector<Exchange::Piece> sends) {
  for (const int32_t destination : plan->destinations)
    state->messages.WaitFor(destination, Message::kGradient, number);
  if (state->from_lanes != nullptr) MeetSiblings(Message::kGradientReady, state->from_siblings);
  backward->StartRows(std::move(sends), GradientReceives());
  Settle();
  backward->WaitForReceives();
  for (const int32_t destination : plan->destinations) state->messages.AddTaken(destination);
  AddReturned();
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < wants.size(); ++i) {
    if (!wants[i]) continue;
    if (state->from_lanes != nullptr)
      GatherLanes(*state->from_lanes, plan->backward.gather_parts, gradients[i]);
    KeepOwnContext(gradients[i]);
    results.push_back(gradients[i].movedim(0, state->options().dim));
  }
  gradients.clear();
  return results;
}

std::vector<at::Tensor> Bridge::Pending::Call::RunBackward(const variable_list& grads) {
  state->without_backward.erase(number);
  owes_gradient = false;
  if (AnyOf(wants)) CheckPlans();
  for (size_t i = 0; i < wants.size(); ++i) {
    at::Tensor gradient;
    if (wants[i])
      gradient = NewRows(plan->backward.receive_shard.size(), i, state->options().device);
    if (wants[i] && plan->needs.has_value())
      gradient = at::zeros_like(gradient, SumType(gradient.scalar_type()));
    gradients.push_back(gradient);
  }
  backward = std::make_shared<Exchange>(state->link(), Direction::kBackward, number);
  std::vector<Exchange::Piece> sends;
  if (state->on_to) sends = GradientSends(grads);
  std::vector<int32_t> waiting;
  for (const auto& [source, flags] : source_wants) {
    if (source != state->link().rank && AnyOf(flags))
      waiting.push_back(static_cast<int32_t>(source));
  }
  Say(Message::kGradient, waiting);
  if (!waiting.empty()) state->KeepUntilTaken(backward, waiting);
  if (AnyOf(wants)) return TakeGradient(std::move(sends));
  backward->StartRows(std::move(sends), {});
  return {};
}

}  // namespace lockstep::mimo
