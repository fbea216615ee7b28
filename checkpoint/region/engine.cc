#include "checkpoint/region/engine.h"

#include <utility>

#include "c10/core/TensorImpl.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/engine.h"

namespace lockstep::checkpoint {
namespace {

thread_local const MakeHooks* innermost = nullptr;

class HookingEngine : public torch::autograd::Engine {
 public:
  // The base's destructor stops threads that call virtual functions of this class.
  ~HookingEngine() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return innermost == nullptr ? nullptr : (*innermost)();
  }
};

torch::autograd::Engine& TheEngine() {
  static HookingEngine engine;
  return engine;
}

// Before main: an engine that has run already keeps its worker threads.
[[maybe_unused]] const bool installed = [] {
  torch::autograd::set_default_engine_stub(&TheEngine);
  return true;
}();

}  // namespace

ScopedHooks::ScopedHooks(MakeHooks make) : make_(std::move(make)), outer_(innermost) {
  TORCH_CHECK(&torch::autograd::Engine::get_default_engine() == &TheEngine(),
              "checkpoint: another autograd engine has replaced the one of this library, so that "
              "no saved tensor would be seen; do not load libtorch_python into this process");
  innermost = &make_;
}

ScopedHooks::~ScopedHooks() { innermost = outer_; }

bool HooksAreActive() { return innermost != nullptr; }

at::Tensor Alias(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

}  // namespace lockstep::checkpoint
