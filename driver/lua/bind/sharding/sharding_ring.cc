// lockstep.core.sharding: shifts, exchanges, and nodes of autograd.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "driver/lua/bind/sharding/counted_call.h"
#include "driver/lua/bind/sharding/distributed.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/activity.h"
#include "driver/ranks/script_calls.h"
#include "sharding/ring/exchange.h"
#include "sharding/ring/shift.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"
#include "torch/csrc/autograd/variable.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<sharding::Shift> = "shift";

template <>
inline constexpr const char* kObjectName<sharding::Exchange> = "exchange";

namespace {

// Makes the call the script's, which is compared with those of the other ranks first. Does nothing
// for an empty subject.
class OfScript {
 public:
  explicit OfScript(const std::string& subject) {
    if (subject.empty()) return;
    call_.emplace();
    subject_.emplace(subject);
  }

 private:
  std::optional<driver::ScriptCall> call_;
  std::optional<driver::CollectiveSubject> subject_;
};

// --- shift ---------------------------------------------------------------------------------------

// shift(x: torch.Tensor, sizes: integer[], options: {group: dist.Group?, subject: string?}?) ->
//     Shift
// Starts to pass x to the next rank of the group, and to take a tensor of these sizes from the
// previous one. With a `subject` the call is compared with those of the other ranks first.
// Collective.
int NewShift(lua_State* state) {
  const at::Tensor& x = ReadTensor(state, 1, "shift: x");
  const std::vector<int64_t> sizes = ReadIntegers(state, 2, "shift: sizes");
  const OptionTable options(state, 3, "shift", {"group", "subject"});
  const Group group = ReadGroup(state, options);
  const OfScript of_script(options.String("subject", ""));
  return PushObject(state, sharding::Shift(x, sizes, group.process_group));
}

// Shift:wait() -> torch.Tensor
// The previous rank's tensor, once it has arrived. Once only.
int WaitForShift(lua_State* state) {
  return PushTensor(state, ReadObject<sharding::Shift>(state, 1, "wait: the shift").Wait());
}

// --- exchange ------------------------------------------------------------------------------------

// exchange(x: torch.Tensor, gives: integer[], takes: integer[], options: {group: dist.Group?,
//     subject: string?}?) -> Exchange
// Starts to send gives[i] elements of x to rank i - 1 of the group, and to take takes[i] from it.
// `subject` as for shift. Collective.
int NewExchange(lua_State* state) {
  const at::Tensor& x = ReadTensor(state, 1, "exchange: x");
  const std::vector<int64_t> gives = ReadIntegers(state, 2, "exchange: gives");
  const std::vector<int64_t> takes = ReadIntegers(state, 3, "exchange: takes");
  const OptionTable options(state, 4, "exchange", {"group", "subject"});
  const Group group = ReadGroup(state, options);
  const OfScript of_script(options.String("subject", ""));
  return PushObject(state, sharding::Exchange(x, gives, takes, group.process_group));
}

// Exchange:wait() -> torch.Tensor
// Returns the received numbers in one dimension, those of rank 0 first. Call it once.
int WaitForExchange(lua_State* state) {
  return PushTensor(state, ReadObject<sharding::Exchange>(state, 1, "wait: the exchange").Wait());
}

// --- node ----------------------------------------------------------------------------------------

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// A node of autograd whose gradient is a function of Lua. That function must not hold the node's
// result or what leads to it: the node would keep itself alive. Such tensors are saved here.
class LuaNode final : public Node {
 public:
  LuaNode(torch::autograd::edge_list&& edges, std::shared_ptr<LuaReference> backward)
      : Node(std::move(edges)), backward_(std::move(backward)) {}

  std::string name() const override { return "RingBackward"; }

  // Called once, before backward.
  void Save(const std::vector<at::Tensor>& tensors, const at::Tensor& y) {
    for (const at::Tensor& tensor : tensors)
      saved_.emplace_back(tensor, tensor.unsafeGetTensorImpl() == y.unsafeGetTensorImpl());
  }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "a gradient of ring attention cannot be differentiated again (create_graph)");
    // The other ranks wait for this one, also where its own loss has no gradient.
    const at::Tensor dy = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    std::vector<at::Tensor> saved;
    for (const SavedVariable& one : saved_) saved.push_back(one.unpack(getptr()));
    lua_State* state = backward_->Push();
    PushTensor(state, dy);
    PushTensors(state, saved);
    Call(state, 2, 1);
    variable_list results = ReadTensors(state, lua_gettop(state), "node: gradients");
    lua_pop(state, 1);
    TORCH_CHECK(results.size() == num_outputs(), "node: expected ", num_outputs(),
                " gradients, got ", results.size());
    return results;
  }

  void release_variables() override {
    for (SavedVariable& one : saved_) one.reset_data();
  }

 private:
  std::shared_ptr<LuaReference> backward_;
  std::vector<SavedVariable> saved_;
};

// node(inputs: torch.Tensor[], forward: fun(): torch.Tensor, torch.Tensor[],
//     backward: fun(dy: torch.Tensor, saved: torch.Tensor[]): torch.Tensor[]) -> torch.Tensor
// A node of autograd: forward() returns a new tensor, and those to save; backward(dy, saved) the
// gradients of the inputs. backward runs also where the result has no gradient, with zeros. It must
// not hold the result.
int NewNode(lua_State* state) {
  const std::vector<at::Tensor> inputs = ReadTensors(state, 1, "node: inputs");
  ReadFunction(state, 2, "node: forward");
  ReadFunction(state, 3, "node: backward");
  lua_pushvalue(state, 2);
  {
    const at::NoGradGuard no_grad;
    Call(state, 0, 2);
  }
  const at::Tensor y = ReadTensor(state, -2, "node: y");
  bool needs_node = false;
  for (const at::Tensor& input : inputs) needs_node |= input.requires_grad();
  if (at::GradMode::is_enabled() && needs_node) {
    const std::vector<at::Tensor> saved =
        ReadTensors(state, lua_gettop(state), "node: saved tensors");
    torch::autograd::edge_list edges;
    for (const at::Tensor& input : inputs)
      edges.push_back(torch::autograd::impl::gradient_edge(input));
    const auto node =
        base::MakeNode<LuaNode>(std::move(edges), std::make_shared<LuaReference>(state, 3));
    torch::autograd::set_history(y, node);
    node->Save(saved, y);
  }
  lua_pop(state, 1);
  return 1;
}

}  // namespace

void SetRingFunctions(lua_State* state) {
  RegisterObject<sharding::Shift>(state, {{"wait", WaitForShift}});
  RegisterObject<sharding::Exchange>(state, {{"wait", WaitForExchange}});
  SetFunctions(state, {{"shift", CountedCall<NewShift>},
                       {"exchange", CountedCall<NewExchange>},
                       {"node", NewNode}});
}

}  // namespace lockstep::lua
