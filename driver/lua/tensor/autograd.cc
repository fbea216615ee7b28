#include "driver/lua/tensor/autograd.h"

#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::lua {
namespace {

// A tensor, or an array of them.
std::vector<at::Tensor> ReadOneOrMore(lua_State* state, int index, const char* name) {
  if (const at::Tensor* tensor = TensorAt(state, index)) return {*tensor};
  return ReadTensors(state, index, name);
}

std::vector<at::Tensor> OptionalTensors(const OptionTable& options, const char* key) {
  return options.Find(key, ReadOneOrMore).value_or(std::vector<at::Tensor>());
}

// "torch.grad: inputs[2], float32 {3},"
std::string Input(const std::vector<at::Tensor>& inputs, size_t i) {
  return absl::StrCat("torch.grad: inputs[", i + 1, "], ", Describe(inputs[i]), ",");
}

int CallInGradMode(lua_State* state, bool enabled, const char* name) {
  ReadFunction(state, 1, name);
  const at::AutoGradMode mode(enabled);
  Call(state, lua_gettop(state) - 1, LUA_MULTRET);
  return lua_gettop(state);
}

}  // namespace

int Backward(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "backward: x");
  std::vector<at::Tensor> gradients;
  if (const at::Tensor* gradient = TensorAt(state, 2)) gradients.push_back(*gradient);
  const bool gradient_first = !gradients.empty() || lua_isnoneornil(state, 2);
  if (!gradient_first && !lua_isnoneornil(state, 3))
    throw Error("backward: the options are the last argument, but another one follows them");
  const OptionTable options(state, gradient_first ? 3 : 2, "backward",
                            {"gradient", "retain_graph", "create_graph", "inputs"});
  for (at::Tensor& gradient : OptionalTensors(options, "gradient")) gradients.push_back(gradient);
  const std::optional<bool> retain_graph = options.Find("retain_graph", ReadBoolean);
  const bool create_graph = options.Boolean("create_graph", false);
  const std::vector<at::Tensor> inputs = OptionalTensors(options, "inputs");
  PrefixErrors("backward", [&] {
    torch::autograd::backward({tensor}, gradients, retain_graph, create_graph, inputs);
  });
  return 0;
}

int Grad(lua_State* state) {
  const std::vector<at::Tensor> outputs = ReadOneOrMore(state, 1, "torch.grad: outputs");
  if (outputs.empty())
    throw Error("torch.grad: outputs is empty; expected one tensor or more to differentiate");
  const std::vector<at::Tensor> inputs = ReadOneOrMore(state, 2, "torch.grad: inputs");
  if (inputs.empty())
    throw Error("torch.grad: inputs is empty; expected one tensor or more to differentiate by");
  const OptionTable options(state, 3, "torch.grad",
                            {"grad_outputs", "allow_unused", "retain_graph", "create_graph"});
  const std::vector<at::Tensor> grad_outputs = OptionalTensors(options, "grad_outputs");
  const std::optional<bool> retain_graph = options.Find("retain_graph", ReadBoolean);
  const bool create_graph = options.Boolean("create_graph", false);
  const bool allow_unused = options.Boolean("allow_unused", false);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad())
      throw Error(absl::StrCat(Input(inputs, i), " does not require a gradient"));
  }
  const std::vector<at::Tensor> gradients = PrefixErrors("torch.grad", [&] {
    return torch::autograd::grad(outputs, inputs, grad_outputs, retain_graph, create_graph,
                                 /*allow_unused=*/true);
  });
  for (size_t i = 0; i < inputs.size() && !allow_unused; ++i) {
    if (!gradients[i].defined())
      throw Error(absl::StrCat(Input(inputs, i),
                               " does not take part in the outputs; with "
                               "{allow_unused = true} its gradient is nil"));
  }
  return PushTensors(state, gradients);
}

int NoGrad(lua_State* state) { return CallInGradMode(state, false, "torch.no_grad: the argument"); }

int EnableGrad(lua_State* state) {
  return CallInGradMode(state, true, "torch.enable_grad: the argument");
}

int InferenceMode(lua_State* state) {
  ReadFunction(state, 1, "torch.inference_mode: the argument");
  const c10::InferenceMode mode;
  Call(state, lua_gettop(state) - 1, LUA_MULTRET);
  return lua_gettop(state);
}

int IsGradEnabled(lua_State* state) { return PushBoolean(state, at::GradMode::is_enabled()); }

}  // namespace lockstep::lua
