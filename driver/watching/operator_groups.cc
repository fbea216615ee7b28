#include "driver/watching/operator_groups.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "ATen/core/enum_tag.h"
#include "ATen/core/function_schema.h"
#include "driver/watching/flops.h"

namespace lockstep::driver {
namespace {

using Names = std::unordered_set<std::string_view>;

bool Has(std::string_view name, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
}

bool StartsWith(std::string_view name, std::string_view start) {
  return name.substr(0, start.size()) == start;
}

const Names& Copies() {
  static const auto* const kNames = new Names{
      "copy_",           "_to_copy",  "clone",        "cat",
      "stack",           "fill_",     "zero_",        "index_select",
      "gather",          "index",     "index_put_",   "_index_put_impl_",
      "index_add_",      "index_add", "index_copy_",  "scatter",
      "scatter_",        "repeat",    "scatter_add_", "scatter_add",
      "constant_pad_nd", "roll",      "flip",         "embedding_dense_backward",
      "slice_backward",  "tril",      "triu",         "arange",
  };
  return *kNames;
}

const Names& Products() {
  static const auto* const kNames =
      new Names{"mv", "dot", "vdot", "addmv", "addmv_", "addr", "_grouped_mm", "_int_mm"};
  return *kNames;
}

// Those of ours, which have no tags.
const Names& OurPointwise() {
  static const auto* const kNames =
      new Names{"swiglu", "swiglu_backward", "rotate", "rotate_backward", "turns_of"};
  return *kNames;
}

const Names& WriteOnly() {
  static const auto* const kNames =
      new Names{"copy_",   "fill_",    "zero_",          "_foreach_copy_", "normal_",
                "random_", "uniform_", "_foreach_zero_", "bernoulli_"};
  return *kNames;
}

const Names& Selections() {
  static const auto* const kNames = new Names{"index_select", "gather", "index"};
  return *kNames;
}

// Updates of many tensors at once are the optimizer's, or the clipping's before it.
bool IsOptimizers(std::string_view op) {
  return StartsWith(op, "_foreach_") || StartsWith(op, "_amp_foreach_") ||
         StartsWith(op, "adamw") ||
         (StartsWith(op, "_fused_") && Has(op, {"adam", "sgd", "adagrad"}));
}

std::string GroupOf(const c10::OperatorHandle& op, std::string_view space, std::string_view name,
                    bool has_flops) {
  if (StartsWith(space, "c10d") || StartsWith(space, "_c10d")) return "communication";
  if (Has(name, {"attention"})) return "attention";
  if (has_flops || Products().count(name) > 0) return "matrix products";
  if (IsOptimizers(name)) return "optimizer";
  if (Has(name, {"layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm"}))
    return "normalisation";
  if (Copies().count(name) > 0) return "copies";
  if (Has(name, {"softmax", "_loss", "logsumexp", "vector_norm"})) return "reductions";
  if (op.hasTag(at::Tag::pointwise) || OurPointwise().count(name) > 0) return "pointwise";
  if (op.hasTag(at::Tag::reduction)) return "reductions";
  return "other";
}

bool IsView(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& returned) {
    return returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
  });
}

OperatorKind::Work WorkOf(const c10::OperatorHandle& op, const OperatorKind& kind,
                          std::string_view name, c10::Device device) {
  using Work = OperatorKind::Work;
  const bool allocates = StartsWith(name, "empty") || StartsWith(name, "new_empty");
  // Its schema does not tell that it is a view.
  const bool is_unsafe_view = StartsWith(name, "_unsafe_view");
  if (allocates || is_unsafe_view || op.hasTag(at::Tag::inplace_view) || IsView(op.schema()))
    return Work::kNone;
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  if (kind.has_flops || IsOptimizers(name) || op.hasKernelForDispatchKey(key)) return Work::kOwn;
  // One that is made of others alone may do nothing, as result_type.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ? Work::kOfParts
                                                                                 : Work::kNone;
}

}  // namespace

OperatorKind KindOf(const c10::OperatorHandle& op, c10::Device device) {
  const c10::FunctionSchema& schema = op.schema();
  OperatorKind kind;
  kind.name = schema.name();
  const size_t colons = kind.name.find("::");
  const std::string_view space = std::string_view(kind.name).substr(0, colons);
  const std::string_view name =
      std::string_view(kind.name).substr(colons == std::string::npos ? 0 : colons + 2);
  kind.has_flops = HasFlops(kind.name);
  kind.group = GroupOf(op, space, name, kind.has_flops);
  kind.work = WorkOf(op, kind, name, device);
  kind.reads_a_selection = Selections().count(name) > 0;
  const bool is_write_only = WriteOnly().count(name) > 0;
  for (const c10::Argument& argument : schema.arguments()) {
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const bool is_read = !is_written || (!argument.is_out() && !is_write_only);
    kind.arguments.push_back({is_read, is_written});
  }
  for (const c10::Argument& returned : schema.returns())
    kind.returns_new_memory.push_back(returned.alias_info() == nullptr);
  return kind;
}

}  // namespace lockstep::driver
