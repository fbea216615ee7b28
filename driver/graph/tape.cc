#include "driver/graph/tape.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/copy.h"
#include "absl/strings/str_cat.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "driver/graph/values.h"

namespace lockstep::driver {
namespace {

bool HaveSameLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type();
}

// Moves the memory of `from` into `to`, and copies if something else holds that memory.
void TakeMemory(const at::Tensor& to, const at::Tensor& from) {
  c10::StorageImpl* const target = to.storage().unsafeGetStorageImpl();
  c10::StorageImpl* const source = from.storage().unsafeGetStorageImpl();
  if (from.storage().use_count() == 1 && source->nbytes() == target->nbytes() &&
      HaveSameLayout(to, from)) {
    target->set_data_ptr_noswap(std::move(source->_mutable_data_ptr_no_checks()));
  } else {
    to.copy_(from);
  }
}

}  // namespace

std::string Tape::Mismatch() const {
  for (const External& external : externals_) {
    const at::Tensor& tensor = external.tensor;
    const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    if (storage != external.storage || storage->data() != external.data)
      return absl::StrCat("the memory of a tensor of shape ", ShapeOf(tensor), " has moved");
    if (!HaveSameLayout(tensor, external.layout))
      return absl::StrCat("a tensor of shape ", ShapeOf(external.layout),
                          " has another shape, stride, offset or dtype, and shape ",
                          ShapeOf(tensor));
    if (tensor.requires_grad() != external.requires_grad)
      return absl::StrCat("requires_grad of a tensor of shape ", ShapeOf(tensor), " has changed");
  }
  for (const Leaf& leaf : leaves_) {
    if (!leaf.needs_grad_before) continue;
    const at::Tensor& now = leaf.tensor.grad();
    if (now.defined() != leaf.grad_before.defined())
      return absl::StrCat(
          "a tensor of shape ", ShapeOf(leaf.tensor),
          now.defined() ? " has a gradient, and had none" : " has no gradient, and had one");
    if (now.defined() &&
        (now.layout() != at::kStrided || now.scalar_type() != leaf.grad_before.scalar_type() ||
         now.strides() != leaf.grad_before.strides()))
      return absl::StrCat("the gradient of a tensor of shape ", ShapeOf(leaf.tensor),
                          " has another layout or dtype");
  }
  return "";
}

void Tape::Run(const Operation& operation) {
  stack_.assign(operation.arguments.begin(), operation.arguments.end());
  at::GradMode::set_enabled(operation.grad_mode);
  operation.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  if (operation.results.empty()) return;
  size_t index = 0, next = 0;
  for (const c10::IValue& value : stack_) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (next == operation.results.size() || operation.results[next].index != index++) return;
      const at::Tensor& target = operation.results[next++].tensor;
      TORCH_CHECK(tensor.defined() && tensor.sizes() == target.sizes(), "a graph's ",
                  operation.op.operator_name(), " returned another shape than ", target.sizes(),
                  ", which it returned when it was recorded");
      TakeMemory(target, tensor);
    });
  }
}

void Tape::Replay() {
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  // The operators add to the gradients that were there first.
  for (const Leaf& leaf : leaves_)
    if (leaf.needs_grad_before && leaf.grad_before.defined() &&
        !leaf.tensor.grad().is_same(leaf.grad_before))
      leaf.grad_before.copy_(leaf.tensor.grad());
  {
    const at::AutoGradMode restore(at::GradMode::is_enabled());
    for (const Operation& operation : operations_) Run(operation);
  }
  stack_.clear();
  for (const External& external : externals_)
    if (external.is_written && !external.tensor.is_inference())
      external.tensor.unsafeGetTensorImpl()->bump_version();
  for (const Leaf& leaf : leaves_) leaf.tensor.mutable_grad() = leaf.grad_after;
}

}  // namespace lockstep::driver
