// One call of a bridge. See bridge.h.

#ifndef LOCKSTEP_MIMO_BRIDGE_CALL_H_
#define LOCKSTEP_MIMO_BRIDGE_CALL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/strings/str_cat.h"
#include "mimo/bridge.h"
#include "mimo/bridge_state.h"
#include "mimo/edge_plan.h"
#include "mimo/exchange.h"

namespace lockstep::mimo {

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
    if (state == nullptr || state->nothing_travels) return;
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
    if (backward == nullptr)
      backward = std::make_shared<Exchange>(state->link(), Direction::kBackward, number);
    if (!backward->has_sent_word()) state->SendError(backward, text, plan->sources);
  }

  void SetUpFrom(const std::vector<at::Tensor>& given, const std::optional<Ownership>& ownership);
  void SetUpTo(const std::optional<Ownership>& ownership);
  void StartForward();
  void CheckWords();
  void Settle();
  std::vector<at::Tensor> Finish();
  std::vector<Exchange::Piece> GradientReceives();
  at::Tensor OutputGradient(const at::Tensor& gradient, size_t tensor);
  void SendGradient(const std::vector<at::Tensor>& grads, bool receives);
  void CheckAlikeOverTp(const at::Tensor& rows, size_t tensor) const;
  void KeepOwnContext(at::Tensor& gradient) const;
  std::vector<at::Tensor> RunBackward(const std::vector<at::Tensor>& grads);
  void PostNextGradient();

  // Whether tp ranks of `to` compare their gradients.
  bool audits() const {
    return state->options().audit && state->to_lanes != nullptr &&
           state->module(/*of_from=*/false).tp > 1;
  }
  at::Tensor NewRows(int64_t rows, size_t tensor, c10::Device device) const;
  void PostGradient();
  Word NewWord(int32_t peer) const;
  std::string InWords() const {
    return samples.empty() ? plan->rows : absl::StrCat(plan->rows, ", samples ", samples);
  }
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_CALL_H_
