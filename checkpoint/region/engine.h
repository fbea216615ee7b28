// Hooks that see every tensor that operators save for backward, in C++.
//
// libtorch hands each saved tensor to the hooks that its autograd engine names; its own engine
// names none, and the switch at::SavedTensorDefaultHooks carries Python objects only. So this
// library is an engine: libtorch's, with hooks of the calling thread's choice.
//
//   const ScopedHooks scope([] { return std::make_unique<MyHooks>(); });
//   y = torch::tanh(x);   // y, which tanh saves, goes through call_pack_hook of one MyHooks
//
// A program that links this library has the engine from its start on. Nothing is hooked, and
// nothing slower than one thread-local read, where no ScopedHooks lives.
//
// Thread: hooks are those of the thread that runs forward; unpacking may happen on any.

#ifndef LOCKSTEP_CHECKPOINT_REGION_ENGINE_H_
#define LOCKSTEP_CHECKPOINT_REGION_ENGINE_H_

#include <functional>
#include <memory>

#include "ATen/core/TensorBody.h"
#include "torch/csrc/autograd/saved_variable_hooks.h"

namespace lockstep::checkpoint {

// Makes the hooks of one saved tensor. Libtorch then calls call_pack_hook once, with gradients off,
// and call_unpack_hook whenever backward needs the tensor. What pack throws leaves the operator.
using MakeHooks = std::function<std::unique_ptr<torch::autograd::SavedVariableHooks>()>;

// While it lives, tensors that this thread saves for backward go through hooks from `make`: those
// of the innermost scope alone. Throws c10::Error where another engine has taken this one's place.
class ScopedHooks {
 public:
  explicit ScopedHooks(MakeHooks make);
  ScopedHooks(const ScopedHooks&) = delete;
  ScopedHooks& operator=(const ScopedHooks&) = delete;
  ~ScopedHooks();

 private:
  MakeHooks make_;
  const MakeHooks* outer_;
};

// Whether a ScopedHooks lives on this thread.
bool HooksAreActive();

// The same elements and version counter without history: what a hook may keep. A hook that kept the
// tensor itself would make a cycle of it, its history and the hook.
at::Tensor Alias(const at::Tensor& tensor);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_ENGINE_H_
