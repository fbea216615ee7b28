// The plan of a call: made from what the caller gives, told to the peers, compared with theirs.

#include <algorithm>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "mimo/bridge/bridge_call.h"

namespace lockstep::mimo {
namespace {

bool Contains(const std::vector<int32_t>& ranks, int32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Returns whether both describe the same tensors. Compares dtypes only if `with_dtypes`.
bool AreAlike(std::vector<TensorSpec> a, const std::vector<TensorSpec>& b, bool with_dtypes) {
  for (size_t i = 0; i < a.size() && i < b.size() && !with_dtypes; ++i) a[i].dtype = b[i].dtype;
  return a == b;
}

std::vector<TensorSpec> SpecsOf(const Message& message) {
  std::vector<TensorSpec> specs;
  for (int64_t i = 0; i < message.num_tensors; ++i) {
    const auto& tensor = message.tensors[i];
    specs.push_back({static_cast<at::ScalarType>(tensor.dtype),
                     {tensor.sizes, tensor.sizes + tensor.num_dims}});
  }
  return specs;
}

}  // namespace

void Bridge::Pending::Call::CheckNeeds(const std::optional<Ownership>& ownership,
                                       const std::optional<Needs>& needs) const {
  const Receives receives = state->options().receives;
  TORCH_CHECK_VALUE((receives != Receives::kReplica) == needs.has_value(), "mimo: bridge ",
                    state->link().name, ": ", state->link().Describe(state->link().rank),
                    needs.has_value()
                        ? " gives a call needs, but the bridge was made without; make "
                          "it with needs = \"cp\" or \"tp-cp\""
                        : " gives a call no needs, but the bridge was made with "
                          "needs; give them in every call");
  TORCH_CHECK_VALUE(!needs.has_value() || ownership.has_value(), "mimo: bridge ",
                    state->link().name, ": ", state->link().Describe(state->link().rank),
                    " gives needs, but not which rows are whose (ownership or rows_per_sample)");
}

void Bridge::Pending::Call::SetUpFrom(const std::vector<at::Tensor>& given,
                                      const std::optional<Ownership>& ownership,
                                      const std::optional<Needs>& needs) {
  CheckNeeds(ownership, needs);
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
  const int64_t rows = given[0].size(dim);
  TORCH_CHECK_VALUE(
      AreAlike(state->specs.value_or(specs), specs, state->has_dtypes && rows > 0), "mimo: bridge ",
      name, ": x is ", Describe(specs, dim), ", but was ",
      Describe(state->specs.value_or(specs), dim),
      " in earlier calls; every call must have the same dtypes and dims, but for rows");
  if (!state->has_dtypes) state->specs = specs;
  state->has_dtypes = state->has_dtypes || rows > 0;
  if (ownership.has_value()) {
    plan = state->PlanFor(*ownership, needs);
    TORCH_CHECK_VALUE(rows == plan->forward.send_shard.size(), "mimo: bridge ", name, ": x has ",
                      rows, " rows on dim ", dim, ", but the samples of ",
                      state->link().Describe(state->link().rank), " have ",
                      plan->forward.send_shard.size(), " of ", plan->rows);
  } else {
    const int64_t all = rows * state->module(/*of_from=*/true).dp;
    TORCH_CHECK_VALUE(state->options().rows_may_vary || state->num_rows.value_or(all) == all,
                      "mimo: bridge ", name, ": x has ", rows, " rows on dim ", dim,
                      ", but in the first call it was ", *state->num_rows / state->module(true).dp,
                      "; where it varies, say which rows are whose (rows_per_sample)");
    state->num_rows = all;
    plan = state->PlanFor(UniformOwnership(all));
  }
  tensors = given;
}

void Bridge::Pending::Call::SetUpTo(const std::optional<Ownership>& ownership,
                                    const std::optional<Needs>& needs) {
  CheckNeeds(ownership, needs);
  if (ownership.has_value()) {
    plan = state->PlanFor(*ownership, needs);
    return;
  }
  if (!state->num_rows.has_value() || state->options().rows_may_vary) {
    // A source must say how many rows come.
    const int32_t source = state->PlanFor(UniformOwnership(0))->sources.front();
    plans[source] = state->messages.WaitFor(source, Message::kPlan, number);
    state->num_rows = plans[source].num_rows;
  }
  plan = state->PlanFor(UniformOwnership(*state->num_rows));
}

Message Bridge::Pending::Call::Plan() const {
  Message message{.kind = Message::kPlan, .call = number};
  message.layout = state->layout;
  message.fingerprint = fingerprint;
  message.num_rows = plan->ownership.num_tokens();
  message.num_own_rows = tensors.empty() ? 0 : tensors[0].size(state->options().dim);
  message.set_text(InWords());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = message.tensors[message.num_tensors++];
    const TensorSpec& spec = (*state->specs)[i];
    tensor.dtype = static_cast<int64_t>(tensors[i].scalar_type());
    tensor.wants_gradient = wants[i] ? 1 : 0;
    tensor.num_dims = static_cast<int64_t>(spec.sizes.size());
    std::copy(spec.sizes.begin(), spec.sizes.end(), tensor.sizes);
  }
  return message;
}

// Compares what the peers planned with the plan of this rank.
void Bridge::Pending::Call::CheckPlans() {
  if (std::exchange(checked, true)) return;
  for (const int32_t peer : peers) {
    if (plans.count(peer) == 0) plans[peer] = state->messages.WaitFor(peer, Message::kPlan, number);
  }
  const Link& link = state->link();
  const int64_t dim = state->options().dim;
  if (state->on_to) state->ForgetTaken();
  for (const int32_t peer : peers) {
    const Message& message = plans[peer];
    const std::string who = link.Describe(peer);
    TORCH_CHECK(message.layout == state->layout, "mimo: bridge ", link.name, ", call ", number,
                ": ", link.Describe(link.rank), " and ", who,
                " made this bridge with different topologies, or another dim; give every rank the "
                "same sizes, ranks and order of modules, and the same dim");
    TORCH_CHECK(message.fingerprint == fingerprint, "mimo: bridge ", link.name, ", call ", number,
                ": the ranks disagree about the micro-batch: ", link.Describe(link.rank), " has ",
                InWords(), "; ", who, " has ", message.text);
    if (message.num_tensors == 0) continue;
    // Tensors without rows may be of any dtype.
    const bool has_rows = message.num_own_rows > 0;
    const std::vector<TensorSpec> specs = SpecsOf(message);
    TORCH_CHECK(AreAlike(specs, state->specs.value_or(specs), state->has_dtypes && has_rows),
                "mimo: bridge ", link.name, ", call ", number, ": ", link.Describe(link.rank),
                " expects ", Describe(state->specs.value_or(specs), dim), ", but ", who, " sends ",
                Describe(specs, dim));
    if (!state->specs.has_value() || (has_rows && !state->has_dtypes)) state->specs = specs;
    state->has_dtypes = state->has_dtypes || has_rows;
    std::vector<bool> flags;
    for (int64_t t = 0; t < message.num_tensors; ++t)
      flags.push_back(message.tensors[t].wants_gradient != 0);
    // They gather the gradient together: one that does not come would be waited for.
    TORCH_CHECK(
        !Contains(state->from_siblings, peer) || flags == wants, "mimo: bridge ", link.name,
        ", call ", number, ": ", link.Describe(link.rank), " and ", who,
        " hold the same replica, but x requires grad on one of them alone; freeze the tower "
        "on all ranks of a replica, or on none");
    if (Contains(plan->sources, peer)) source_wants[peer] = std::move(flags);
  }
  if (state->on_to && state->on_from) source_wants[link.rank] = wants;
  plans.clear();
}

}  // namespace lockstep::mimo
