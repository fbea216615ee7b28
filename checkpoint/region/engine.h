// Hooks that see every tensor that operators save for backward, in C++.
//
// libtorch passes each saved tensor to the hooks that its autograd engine returns. Its own engine
// returns none, and the switch at::SavedTensorDefaultHooks holds Python objects only. So this
// library is an engine: libtorch's, with hooks that the calling thread chooses.
//
//    const ScopedHooks scope([] { return std::make_unique<MyHooks>(); });
//    y = torch::tanh(x);   // tanh saves y: it goes through call_pack_hook of one MyHooks
//
// A program that links this library has the engine from its start on. Without a ScopedHooks nothing
// is hooked, and the cost is one thread-local read.
//
// Thread: hooks come from the thread that runs forward. Unpacking may run on any thread.

#ifndef LOCKSTEP_CHECKPOINT_REGION_ENGINE_H_
#define LOCKSTEP_CHECKPOINT_REGION_ENGINE_H_

#include <functional>
#include <memory>

#include "ATen/core/TensorBody.h"
#include "torch/csrc/autograd/saved_variable_hooks.h"

namespace lockstep::checkpoint {

// Makes the hooks of one saved tensor. libtorch then calls call_pack_hook once, with gradients off,
// and call_unpack_hook whenever backward needs the tensor. An exception of call_pack_hook leaves
// the operator.
using MakeHooks = std::function<std::unique_ptr<torch::autograd::SavedVariableHooks>()>;

// While it lives, tensors that this thread saves for backward go through hooks from `make`. Only
// the innermost scope applies. Throws c10::Error if another engine has replaced this one.
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

// Returns whether a ScopedHooks lives on this thread.
bool HooksAreActive();

// Returns a tensor with the same elements and version counter but without history, which a hook may
// keep. Keeping the tensor itself would make a cycle of the tensor, its history and the hook.
at::Tensor Alias(const at::Tensor& tensor);

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_ENGINE_H_
