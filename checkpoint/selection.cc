#include "checkpoint/selection.h"

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/enum_tag.h"
#include "ATen/core/stack.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "checkpoint/engine.h"

namespace lockstep::checkpoint {
namespace {

thread_local SelectionScope::Active* active = nullptr;

std::string NameOf(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name);
}

// The tensors of a value: itself, or of a list.
std::vector<at::Tensor> TensorsOf(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

// The same value, with aliases in place of its tensors.
c10::IValue WithoutHistory(const c10::IValue& value) {
  const auto alias = [](const at::Tensor& t) { return t.defined() ? Alias(t) : t; };
  if (value.isTensor()) return alias(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(alias(tensor));
  return list;
}

std::vector<uint32_t> VersionsOf(const std::vector<c10::IValue>& values) {
  std::vector<uint32_t> versions;
  for (const c10::IValue& value : values)
    for (const at::Tensor& tensor : TensorsOf(value))
      versions.push_back(tensor.defined() ? static_cast<uint32_t>(tensor._version()) : 0);
  return versions;
}

std::vector<at::Tensor> ArgumentTensors(const torch::jit::Stack& stack, size_t count) {
  std::vector<at::Tensor> tensors;
  for (auto value = stack.end() - static_cast<int64_t>(count); value != stack.end(); ++value)
    for (at::Tensor& tensor : TensorsOf(*value)) tensors.push_back(std::move(tensor));
  return tensors;
}

void KeepResults(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  SelectionScope::Active* const scope = active;
  const bool draws = scope->results->keep_random && op.hasTag(at::Tag::nondeterministic_seeded);
  const std::vector<at::Tensor> arguments =
      draws ? ArgumentTensors(*stack, op.schema().arguments().size()) : std::vector<at::Tensor>();
  {
    // What the operator calls itself is part of its result.
    const SelectionScope none(nullptr, nullptr, SelectionScope::Pass::kForward);
    op.redispatchBoxed(keys, stack);
  }
  KeptResults::Call call;
  for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size()))
    call.results.push_back(WithoutHistory(result));
  call.versions = VersionsOf(call.results);
  if (draws) call.random = KeepRandom(arguments);
  scope->results->calls[NameOf(op.operator_name())].push_back(std::move(call));
}

void TakeResults(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = NameOf(op.operator_name());
  std::vector<KeptResults::Call>& calls = active->results->calls[name];
  const size_t index = active->taken[name]++;
  TORCH_CHECK(index < calls.size(), "checkpoint: the recomputation calls ", name,
              " more often than forward did (", calls.size(),
              " times); a region's function must do the same each time");
  const KeptResults::Call& call = calls[index];
  TORCH_CHECK(VersionsOf(call.results) == call.versions, "checkpoint: result ", index, " of ", name,
              ", which a selection keeps, was modified in place; use an operator that is not in "
              "place on it, or leave ",
              name, " to be recomputed");
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (const c10::IValue& result : call.results) stack->push_back(WithoutHistory(result));
  PutBack(call.random);
}

void Kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  if (active == nullptr || !active->selection->Contains(op.operator_name()))
    return op.redispatchBoxed(below, stack);
  if (active->pass == SelectionScope::Pass::kForward) return KeepResults(op, below, stack);
  TakeResults(op, stack);
}

// Once for each operator, and for good: a kernel that is taken away while another thread calls it
// would be a race.
void Intercept(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* const registered = new std::map<std::string, c10::RegistrationHandleRAII>();
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string name = NameOf(op.operator_name());
  if (registered->count(name) > 0) return;
  registered->emplace(name, c10::Dispatcher::singleton().registerImpl(
                                op.operator_name(), c10::DispatchKey::BackendSelect,
                                c10::KernelFunction::makeFromBoxedFunction<&Kernel>(), std::nullopt,
                                nullptr, "lockstep selective checkpoint"));
}

// Why results of the operator cannot be kept, "" where they can.
std::string Problem(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return "is made of other operators above autograd; name those (aten::mm, aten::addmm and "
           "aten::bmm for linear and matmul)";
  for (const c10::Argument& argument : op.schema().arguments())
    if (argument.alias_info() != nullptr)
      return argument.alias_info()->isWrite() ? "writes into its arguments"
                                              : "returns a view, which holds no memory of its own";
  if (op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect))
    return "makes tensors out of none";
  return "";
}

}  // namespace

std::shared_ptr<const Selection> Selection::Of(const std::vector<std::string>& operators) {
  TORCH_CHECK_VALUE(!operators.empty(),
                    "checkpoint: a selection names at least one operator, as \"aten::mm\"");
  auto selection = std::make_shared<Selection>();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const std::string& wanted : operators) {
    std::string problem;
    bool is_known = false;
    bool is_selected = false;
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (name.name != wanted && NameOf(name) != wanted) continue;
      const std::optional<c10::OperatorHandle> op = dispatcher.findSchema(name);
      if (!op.has_value()) continue;
      is_known = true;
      {
        // Selected before: then the kernel at BackendSelect is ours.
        static std::mutex mutex;
        static auto* const fit = new std::set<std::string>();
        const std::lock_guard<std::mutex> lock(mutex);
        const std::string reason = fit->count(NameOf(name)) > 0 ? "" : Problem(*op);
        if (!reason.empty()) {
          problem = reason;
          continue;
        }
        fit->insert(NameOf(name));
      }
      Intercept(*op);
      selection->names_.insert(name);
      is_selected = true;
    }
    TORCH_CHECK_VALUE(is_known, "checkpoint: there is no operator \"", wanted,
                      "\"; a selection names them as \"aten::mm\", or \"aten::sum.dim_IntList\" "
                      "for one overload");
    TORCH_CHECK_VALUE(is_selected, "checkpoint: results of ", wanted, " cannot be kept: it ",
                      problem);
  }
  return selection;
}

std::vector<std::string> Selection::Names() const {
  std::vector<std::string> names;
  for (const c10::OperatorName& name : names_) names.push_back(NameOf(name));
  return names;
}

SelectionScope::SelectionScope(const Selection* selection, KeptResults* results, Pass pass)
    : active_{selection, results, pass, {}}, outer_(active) {
  active = selection == nullptr ? nullptr : &active_;
}

SelectionScope::~SelectionScope() { active = outer_; }

}  // namespace lockstep::checkpoint
