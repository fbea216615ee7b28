#include "driver/lua/operators/explain.h"

#include <cstdint>
#include <optional>

#include "ATen/core/TensorBody.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/lua/tensor/tensor.h"

namespace lockstep::lua {
namespace {

// Returns the arguments that are tensors on the CPU: integers, or all others. A kernel of a GPU
// raises none of these errors.
std::vector<at::Tensor> HostTensors(const std::vector<c10::IValue>& arguments, bool integers) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor()) continue;
    const at::Tensor& tensor = argument.toTensor();
    if (tensor.defined() && tensor.is_cpu() &&
        at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) == integers) {
      found.push_back(tensor);
    }
  }
  return found;
}

// One element of a tensor of integers.
struct Element {
  int64_t value;
  std::string position;  // "3", or "{0, 3}"
};

// Returns the first element, in rows, for which `is_wrong` holds.
template <typename IsWrong>
std::optional<Element> FindElement(const at::Tensor& tensor, const IsWrong& is_wrong) {
  const at::Tensor flat = tensor.detach().to(at::kLong).contiguous();
  const auto* values = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (!is_wrong(values[i])) continue;
    std::vector<int64_t> position(tensor.dim());
    int64_t rest = i;
    for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
      position[dim] = rest % tensor.size(dim);
      rest /= tensor.size(dim);
    }
    const std::string text = absl::StrJoin(position, ", ");
    return Element{values[i], position.size() == 1 ? text : absl::StrCat("{", text, "}")};
  }
  return std::nullopt;
}

// cross_entropy_loss and nll_loss: a target that is no class.
std::string ExplainTarget(const std::string& message, const std::vector<c10::IValue>& arguments) {
  const std::vector<at::Tensor> targets = HostTensors(arguments, /*integers=*/true);
  const std::vector<at::Tensor> inputs = HostTensors(arguments, /*integers=*/false);
  const int64_t named = std::stoll(message.substr(std::string("Target ").size()));
  if (targets.empty() || inputs.empty() || inputs[0].dim() == 0) return message;
  const int64_t classes = inputs[0].size(inputs[0].dim() == 1 ? 0 : 1);
  const auto element = FindElement(targets[0], [&](int64_t x) { return x == named; });
  if (!element.has_value()) return message;
  return absl::StrCat(
      "target ", element->value, " at position ", element->position,
      " is out of bounds: the input, ", Describe(inputs[0]), ", has ", classes, " classes, 0 to ",
      classes - 1,
      named < 0 ? "; a target that does not count is ignore_index, -100 by default" : "");
}

// embedding and index_select: an index beyond the dimension that it selects from.
std::string ExplainIndex(const std::string& message, const std::vector<c10::IValue>& arguments) {
  if (!arguments[0].isTensor() || arguments.size() < 2) return message;
  const at::Tensor& from = arguments[0].toTensor();
  // index_select(self, dim, index); embedding(weight, indices) selects rows.
  const int64_t given = arguments[1].isInt() ? arguments[1].toInt() : 0;
  const int64_t dim = given < 0 ? given + from.dim() : given;
  if (dim < 0 || dim >= from.dim()) return message;
  const int64_t size = from.size(dim);
  for (size_t i = 1; i < arguments.size(); ++i) {
    for (const at::Tensor& indices : HostTensors({arguments[i]}, /*integers=*/true)) {
      const auto element = FindElement(indices, [&](int64_t x) { return x < 0 || x >= size; });
      if (!element.has_value()) continue;
      return absl::StrCat("index ", element->value, " at position ", element->position,
                          " is out of range: dimension ", dim, " of ", Describe(from), " has size ",
                          size, ", so indices are 0 to ", size - 1);
    }
  }
  return message;
}

// one_hot: a class beyond num_classes.
std::string ExplainClass(const std::string& message, const std::vector<c10::IValue>& arguments) {
  const std::vector<at::Tensor> classes = HostTensors(arguments, /*integers=*/true);
  if (classes.empty() || arguments.size() < 2 || !arguments[1].isInt()) return message;
  const int64_t count = arguments[1].toInt();
  const auto element = FindElement(classes[0], [&](int64_t x) { return x >= count; });
  if (!element.has_value()) return message;
  return absl::StrCat("class ", element->value, " at position ", element->position,
                      " is out of range: num_classes is ", count);
}

}  // namespace

std::string Explain(std::string message, const std::vector<c10::IValue>& arguments) {
  if (arguments.empty()) return message;
  if (absl::StartsWith(message, "Target ") && absl::StrContains(message, " is out of bounds")) {
    return ExplainTarget(message, arguments);
  }
  if (message == "index out of range in self" ||
      absl::StartsWith(message, "INDICES element is out of DATA bounds")) {
    return ExplainIndex(message, arguments);
  }
  if (absl::StartsWith(message, "Class values must be smaller than num_classes")) {
    return ExplainClass(message, arguments);
  }
  return message;
}

}  // namespace lockstep::lua
