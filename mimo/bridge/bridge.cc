#include "mimo/bridge/bridge.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/torch/runs_again.h"
#include "base/torch/versions/collectives.h"
#include "c10/util/Exception.h"
#include "mimo/bridge/bridge_call.h"
#include "mimo/bridge/bridge_state.h"
#include "mimo/bridge/exchange.h"
#include "mimo/schedule/schedule.h"

namespace lockstep::mimo {

namespace {

// Returns the numbers of each rank of the group, in its order. Collective.
std::vector<std::vector<int64_t>> GatherNumbers(c10d::ProcessGroup& group,
                                                const std::vector<int64_t>& own) {
  const auto gather = [&group](at::Tensor input) {
    at::Tensor output = at::empty({group.getSize() * input.numel()}, at::kLong);
    base::AllGatherSingle(group, output, input)->wait();
    return output.view({group.getSize(), input.numel()});
  };
  const at::Tensor sizes = gather(at::tensor({static_cast<int64_t>(own.size())}, at::kLong));
  const int64_t most = sizes.max().item<int64_t>();
  at::Tensor padded = at::zeros({most}, at::kLong);
  std::copy(own.begin(), own.end(), padded.mutable_data_ptr<int64_t>());
  const at::Tensor all = gather(padded);
  std::vector<std::vector<int64_t>> numbers;
  for (int64_t i = 0; i < group.getSize(); ++i) {
    const int64_t* first = all.const_data_ptr<int64_t>() + i * most;
    numbers.emplace_back(first, first + sizes[i].item<int64_t>());
  }
  return numbers;
}

}  // namespace

Bridge::Bridge(const Topology& topology, int edge, int64_t rank, const NewGroup& new_group,
               const BridgeOptions& options)
    : state_(std::make_shared<State>(topology, edge, rank, new_group, options)) {
  if (state_->nothing_travels) return;
  const std::vector<std::shared_ptr<State>> dropped = TakeDropped();
  AllStates().push_back(state_);
  try {
    Finish(dropped, /*told_by_others=*/false);
  } catch (const std::exception& error) {
    state_->Fail(TextOf(error));  // the other ranks have this bridge now
    state_->is_abandoned = true;
    throw;
  }
}

// Ranks drop a bridge at different times, and a rank cannot wait for the others then. So they agree
// when they meet to make another one: each names the bridges that it has dropped. All ranks of a
// bridge that all have named end it now, together. A bridge has the same number on all its ranks,
// and another one than the other bridges of each of them.
std::vector<std::shared_ptr<Bridge::State>> Bridge::TakeDropped() {
  static int64_t next_number = 0;
  std::vector<int64_t> own = {next_number};
  for (const auto& state : AllStates()) {
    if (IsDropped(state)) own.push_back(state->number);
  }
  const Link& link = state_->link();
  const std::vector<std::vector<int64_t>> all = GatherNumbers(*link.messages, own);
  for (const std::vector<int64_t>& numbers : all)
    next_number = std::max(next_number, numbers.front());
  state_->number = next_number++;
  const auto is_named_by = [&](int64_t number, int rank) {
    const auto place = std::find(link.ranks.begin(), link.ranks.end(), rank);
    if (place == link.ranks.end()) return false;
    const std::vector<int64_t>& numbers = all[static_cast<size_t>(place - link.ranks.begin())];
    return std::find(numbers.begin() + 1, numbers.end(), number) != numbers.end();
  };
  std::vector<std::shared_ptr<State>> dropped;
  std::erase_if(AllStates(), [&](const std::shared_ptr<State>& state) {
    const std::vector<int>& ranks = state->link().ranks;
    const bool is_dropped = std::all_of(ranks.begin(), ranks.end(),
                                        [&](int rank) { return is_named_by(state->number, rank); });
    if (is_dropped) dropped.push_back(state);
    return is_dropped;
  });
  return dropped;
}

// Returns whether neither the bridge nor a call of it can be used any more on this rank.
bool Bridge::IsDropped(const std::shared_ptr<State>& state) {
  const auto& calls = state->unsettled;  // which keep the state, and are kept by it
  return state->is_abandoned && state.use_count() == 1 + static_cast<int64_t>(calls.size()) &&
         std::all_of(calls.begin(), calls.end(),
                     [](const auto& call) { return call.use_count() == 1; });
}

Bridge::~Bridge() {
  if (std::uncaught_exceptions() > 0) state_->Fail("an exception in its program ended its part");
  state_->is_abandoned = true;
}

std::vector<std::shared_ptr<Bridge::State>>& Bridge::AllStates() {
  static auto* const states = new std::vector<std::shared_ptr<State>>();
  return *states;
}

const std::string& Bridge::failure() const { return state_->failure(); }

int64_t Bridge::num_gradients_kept() const { return state_->num_gradients_kept(); }

void Bridge::FinishAll() { Finish(std::exchange(AllStates(), {}), /*told_by_others=*/true); }

// Throws the first error. `told_by_others`: also one that another rank has had before.
void Bridge::Finish(const std::vector<std::shared_ptr<State>>& states, bool told_by_others) {
  std::exception_ptr first;
  const auto attempt = [&](State& state, const auto& fn) {
    try {
      fn();
    } catch (const std::exception& error) {
      state.Fail(TextOf(error));
      if (first == nullptr && (told_by_others || !state.messages.has_heard_failure()))
        first = std::current_exception();
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
                              const std::optional<Ownership>& ownership, const std::string& samples,
                              const std::optional<Needs>& needs) {
  State& state = *state_;
  state.CheckUsable();
  auto call = std::make_shared<Pending::Call>();
  call->state = state_;
  call->number = state.num_calls++;
  call->samples = samples;
  const auto check_runs_once = [&] {
    base::CheckRunsOnce(absl::StrCat("mimo: a call of bridge ", state.link().name));
  };
  if (state.nothing_travels) {
    check_runs_once();  // on other grids it would be an error
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
    check_runs_once();
    while (state.unsettled.size() >= size_t{kCallsAhead}) {
      state.unsettled.front()->Settle();
      state.unsettled.pop_front();
    }
    if (state.on_from) {
      call->SetUpFrom(tensors, ownership, needs);
    } else {
      TORCH_CHECK_VALUE(tensors.empty(), "mimo: bridge ", state.link().name, ": ",
                        state.link().Describe(state.link().rank),
                        " receives, and has no x to give; pass none");
      call->SetUpTo(ownership, needs);
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
