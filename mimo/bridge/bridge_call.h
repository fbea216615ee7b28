// One call of a bridge. Private to the bridge's sources; see bridge.h.

#ifndef LOCKSTEP_MIMO_BRIDGE_BRIDGE_CALL_H_
#define LOCKSTEP_MIMO_BRIDGE_BRIDGE_CALL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/strings/str_cat.h"
#include "mimo/bridge/bridge.h"
#include "mimo/bridge/bridge_state.h"
#include "mimo/bridge/edge_plan.h"
#include "mimo/bridge/exchange.h"

namespace lockstep::mimo {

// The gradient of rows that one rank needed.
struct Returned {
  at::Tensor rows;
  size_t tensor = 0;
  const std::vector<Range>* ranges = nullptr;  // where they are in x
};

struct Bridge::Pending::Call : std::enable_shared_from_this<Bridge::Pending::Call> {
  std::shared_ptr<State> state;
  int64_t number = 0;
  std::string samples;
  std::shared_ptr<const EdgePlan> plan;
  uint64_t fingerprint = 0;  // of the plan and the samples
  std::shared_ptr<Exchange> forward, backward;
  std::vector<int32_t> peers;          // peers that exchange messages about the call
  std::map<int32_t, Message> plans;    // the peers' plans received so far
  std::vector<Exchange::Piece> sends;  // rows that have not been started
  std::vector<Exchange::Piece> own;    // rows that this rank sends to itself
  std::vector<at::Tensor> tensors;     // on `from`
  std::vector<bool> wants;             // on `from`: whether this rank wants its gradient
  std::vector<at::Tensor> outputs;     // on `to`: rows first
  std::vector<at::Tensor> gradients;   // on `from`: rows first; with needs in SumType
  std::vector<Returned> returned;      // on `from`, with needs: to be added to `gradients`
  std::map<int64_t, std::vector<bool>> source_wants;  // on `to`: of all sources, with this rank
  std::vector<size_t> differentiable;                 // outputs of the node
  bool checked = false;                               // the plans of all peers equal this rank's
  bool received = false;                              // on `to`: the rows have arrived
  bool settled = false;                               // peers have taken the rows sent
  bool waited = false;
  bool owes_gradient = false;  // a source waits for it

  ~Call() {
    if (state == nullptr || state->nothing_travels || plan == nullptr) return;
    if (state->has_failed()) state->Keep({forward, backward});
    if (state->on_to && !received) {  // later calls could not match their rows
      state->unreceived.erase(number);
      state->Fail(absl::StrCat("its call ", number, " was started and never waited for"));
    }
  }

  // Tells the ranks that wait for the gradient that it will not come.
  void ForgetGradient(const std::string& text) noexcept;
  void ForgetGraph() noexcept;  // the same, if the graph of y ends without backward

  void CheckNeeds(const std::optional<Ownership>& ownership,
                  const std::optional<Needs>& needs) const;
  void SetUpFrom(const std::vector<at::Tensor>& given, const std::optional<Ownership>& ownership,
                 const std::optional<Needs>& needs);
  void SetUpTo(const std::optional<Ownership>& ownership, const std::optional<Needs>& needs);
  void StartForward();
  std::vector<Exchange::Piece> MakeOutputs();
  void CheckPlans();
  void Receive();
  void Settle();
  std::vector<at::Tensor> Finish();
  std::vector<Exchange::Piece> GradientReceives();
  void AddReturned();
  at::Tensor OutputGradient(const at::Tensor& gradient, size_t tensor);
  std::vector<Exchange::Piece> GradientSends(const std::vector<at::Tensor>& grads);
  std::vector<at::Tensor> TakeGradient(std::vector<Exchange::Piece> sends);
  void CheckAlikeOverTp(const at::Tensor& rows, size_t tensor) const;
  void KeepOwnContext(at::Tensor& gradient) const;
  std::vector<at::Tensor> RunBackward(const std::vector<at::Tensor>& grads);

  // Returns whether the tp ranks of `to` compare their gradients.
  bool audits() const {
    return state->options().audit && state->to_lanes != nullptr &&
           state->module(/*of_from=*/false).tp > 1;
  }
  // Returns whether the lanes of `to` wait for each other in backward.
  bool sums() const { return state->to_context != nullptr || audits(); }
  at::Tensor NewRows(int64_t rows, size_t tensor, c10::Device device) const;
  Message Plan() const;
  void Say(Message::Kind kind, const std::vector<int32_t>& to) const;
  void MeetSiblings(Message::Kind kind, const std::vector<int32_t>& siblings) const;
  std::string InWords() const {
    return samples.empty() ? plan->rows : absl::StrCat(plan->rows, ", samples ", samples);
  }
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_BRIDGE_CALL_H_
