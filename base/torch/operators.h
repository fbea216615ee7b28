// Helpers to write an operator and its gradient: a call by name, a call below autograd, and a node
// of autograd that saves tensors.
//
//    at::Tensor CallSquare(const at::Tensor& x) {
//      static const auto op =
//          base::FindOperator<at::Tensor(const at::Tensor&)>("lockstep::square");
//      return op.call(x);
//    }
//
//    const at::Tensor y = base::BelowAutograd([&] { return CallSquare(x); });

#ifndef LOCKSTEP_BASE_TORCH_OPERATORS_H_
#define LOCKSTEP_BASE_TORCH_OPERATORS_H_

#include <array>
#include <cstddef>
#include <mutex>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/saved_variable.h"

namespace lockstep::base {

// Returns the operator "library::name", without an overload's name, or throws c10::Error.
template <typename Signature>
auto FindOperator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Calls `call`, whose operators go past autograd to their kernels, and returns its result.
template <typename Call>
auto BelowAutograd(const Call& call) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return call();
}

// A node that saves up to `num_saved` tensors for backward. It drops them when autograd no longer
// needs them.
template <size_t num_saved>
class SavingNode : public torch::autograd::Node {
 public:
  // Saves `inputs` in their order.
  template <typename... Inputs>
  explicit SavingNode(torch::autograd::edge_list&& edges, const Inputs&... inputs)
      : Node(std::move(edges)),
        saved_{torch::autograd::SavedVariable(inputs, /*is_output=*/false)...} {}

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (torch::autograd::SavedVariable& saved : saved_) saved.reset_data();
  }

 protected:
  std::array<torch::autograd::SavedVariable, num_saved> saved_;
};

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_OPERATORS_H_
