#include "driver/graph/values.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::driver {

at::Tensor AliasOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

c10::IValue AliasOf(const c10::IValue& value) {
  if (value.isTensor()) return AliasOf(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> aliases;
    for (const at::Tensor& tensor : value.toTensorList()) aliases.push_back(AliasOf(tensor));
    return aliases;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> aliases;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      aliases.push_back(tensor.has_value() ? std::make_optional(AliasOf(*tensor)) : std::nullopt);
    return aliases;
  }
  return value;
}

std::string ShapeOf(const at::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]");
}

}  // namespace lockstep::driver
