// The tensors inside of boxed values.

#ifndef LOCKSTEP_DRIVER_GRAPH_VALUES_H_
#define LOCKSTEP_DRIVER_GRAPH_VALUES_H_

#include <string>

#include "ATen/core/TensorBody.h"
#include "ATen/core/ivalue.h"

namespace lockstep::driver {

// Calls visit(tensor) for a tensor, or for each of a list. Undefined tensors count; absent ones of
// an optional list do not.
template <typename Visit>
void ForEachTensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor.has_value()) visit(*tensor);
  }
}

// Returns a tensor on the same memory, without history. It shares the count of writes.
at::Tensor AliasOf(const at::Tensor& tensor);

// The same for all tensors of a value.
c10::IValue AliasOf(const c10::IValue& value);

// Returns "[2, 3]".
std::string ShapeOf(const at::Tensor& tensor);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_GRAPH_VALUES_H_
