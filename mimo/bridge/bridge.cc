#include "mimo/bridge/bridge.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "mimo/bridge/bridge_call.h"
#include "mimo/bridge/bridge_state.h"
#include "mimo/bridge/exchange.h"
#include "mimo/schedule/schedule.h"

namespace lockstep::mimo {

Bridge::Bridge(const Topology& topology, int edge, int64_t rank, const NewGroup& new_group,
               const BridgeOptions& options)
    : state_(std::make_shared<State>(topology, edge, rank, new_group, options)) {
  AllStates().push_back(state_);
}

Bridge::~Bridge() {
  if (std::uncaught_exceptions() > 0) state_->Fail("an exception in its program ended its part");
}

std::vector<std::shared_ptr<Bridge::State>>& Bridge::AllStates() {
  static auto* const states = new std::vector<std::shared_ptr<State>>();
  return *states;
}

const std::string& Bridge::failure() const { return state_->failure(); }

int64_t Bridge::num_gradients_kept() const { return state_->num_gradients_kept(); }

void Bridge::FinishAll() {
  const std::vector<std::shared_ptr<State>> states = std::exchange(AllStates(), {});
  std::exception_ptr first;
  const auto attempt = [&](State& state, const auto& fn) {
    try {
      fn();
    } catch (const std::exception& error) {
      state.Fail(TextOf(error));
      if (first == nullptr) first = std::current_exception();
    }
  };
  for (const auto& state : states) {
    attempt(*state, [&] {
      for (const auto& call : state->unsettled) {
        if (!state->has_failed()) call->Settle();
      }
    });
  }
  for (const auto& state : states) state->SayLeft();
  for (const auto& state : states) {
    attempt(*state, [&] { state->WaitForOthers(); });
    state->unsettled.clear();  // which keep the state
  }
  if (first != nullptr) std::rethrow_exception(first);
}

void Bridge::Refuse(const std::string& text) {
  State& state = *state_;
  if (state.nothing_travels || state.has_failed()) return;
  ++state.num_calls;
  state.Fail(text);
}

void Bridge::CheckBackward() const {
  const State& state = *state_;
  const std::set<int64_t>& calls = state.without_backward;
  if (calls.empty() || state.has_failed()) return;  // what failed has been told
  const std::string which =
      calls.size() == 1
          ? absl::StrCat("call ", *calls.begin())
          : absl::StrCat(calls.size(), " calls, the first of them call ", *calls.begin());
  const std::string& name = state.link().name;
  const std::string rank = state.link().Describe(state.link().rank);
  TORCH_CHECK_VALUE(!state.on_to, "mimo: bridge ", name, ": on ", rank,
                    " backward has not run through y of ", which, ": ",
                    state.module(/*of_from=*/true).name,
                    " waits for its gradient; did the loss use y, and did backward run? "
                    "Run calls that need no gradient under torch.no_grad on every rank");
  TORCH_CHECK_VALUE(false, "mimo: bridge ", name, ": on ", rank,
                    " backward has not run through y of ", which,
                    ", so that x has no gradient: call torch.sum(y):backward() there, too. Run "
                    "calls that need no gradient under torch.no_grad on every rank");
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
  if (state.nothing_travels) {
    TORCH_CHECK_VALUE(!state.on_from || !tensors.empty(), "mimo: bridge ", state.link().name,
                      ": no tensor was given; this rank has both modules, and gives x");
    // Nothing would go astray here; on other grids the same call would.
    if (state.on_from && ownership.has_value()) {
      const int64_t dim = state.options().dim;
      const int64_t rows = state.PlanFor(*ownership)->forward.send_shard.size();
      for (const at::Tensor& tensor : tensors) {
        TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() > dim && tensor.size(dim) == rows,
                          "mimo: bridge ", state.link().name, ": x has ",
                          tensor.defined() && tensor.dim() > dim ? tensor.size(dim) : 0,
                          " rows on dim ", dim, ", but the samples of rank ", state.link().rank,
                          " have ", rows, " of ", ownership->num_tokens());
      }
    }
    call->tensors = tensors;
    return Pending(std::move(call));
  }
  call->forward = std::make_shared<Exchange>(state.link(), Direction::kForward, call->number);
  try {
    while (state.unsettled.size() >= size_t{kCallsAhead}) {
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
    const at::NoGradGuard no_grad;
    call->StartForward();
  } catch (const std::exception& error) {
    state.Fail(TextOf(error));
    throw;
  }
  if (state.on_from) state.unsettled.push_back(call);
  return Pending(std::move(call));
}

std::vector<at::Tensor> Bridge::Pending::Wait() {
  TORCH_CHECK_VALUE(!std::exchange(call_->waited, true),
                    "mimo: a call of a bridge was waited for twice");
  if (call_->state->nothing_travels) return call_->tensors;
  try {
    return call_->Finish();
  } catch (const std::exception& error) {
    call_->state->Fail(TextOf(error));
    throw;
  }
}

}  // namespace lockstep::mimo
