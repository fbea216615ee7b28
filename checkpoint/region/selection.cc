#include "checkpoint/region/selection.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/enum_tag.h"
#include "ATen/core/stack.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "checkpoint/region/engine.h"

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

KeptResults::Watched Watch(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.unsafeGetTensorImpl()->version_counter(),
          static_cast<uint32_t>(tensor._version())};
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
    // Calls that the operator makes itself belong to its result.
    const SelectionScope none(nullptr, nullptr, SelectionScope::Mode::kForward);
    op.redispatchBoxed(keys, stack);
  }
  KeptResults::Call call;
  for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size())) {
    call.results.push_back(WithoutHistory(result));
    for (const at::Tensor& tensor : TensorsOf(result))
      if (tensor.defined() && tensor.has_storage()) call.watched.push_back(Watch(tensor));
  }
  if (draws) call.random = base::RandomState::Of(arguments);
  scope->results->calls[NameOf(op.operator_name())].push_back(std::move(call));
}

void TakeResults(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const std::string name = NameOf(op.operator_name());
  std::vector<KeptResults::Call>& calls = active->results->calls[name];
  const size_t index = active->taken[name]++;
  const auto run = [&] {
    const SelectionScope none(nullptr, nullptr, SelectionScope::Mode::kForward);
    op.redispatchBoxed(keys, stack);
  };
  if (index >= calls.size()) {
    // torch.grad within the function recomputes before forward has come here.
    TORCH_CHECK(!active->results->is_complete, "checkpoint: the recomputation calls ", name,
                " more often than forward did (", calls.size(),
                " times); a region's function must do the same each time");
    return run();
  }
  KeptResults::Call& call = calls[index];
  if (call.IsModified()) {
    ++active->results->num_modified;
    call.results.clear();
    return run();
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (const c10::IValue& result : call.results) stack->push_back(WithoutHistory(result));
  call.random.Restore();
}

void Kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::after_ADInplaceOrView_keyset;
  if (active == nullptr || !active->selection->Contains(op.operator_name()))
    return op.redispatchBoxed(below, stack);
  if (active->mode == SelectionScope::Mode::kForward) return KeepResults(op, below, stack);
  TakeResults(op, below, stack);
}

// Runs an operator whose result is a view with its own count of writes. A write to that view does
// not change the count of the tensor beneath it, so each count is watched.
void HidingKernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  if (active == nullptr) return;
  for (const at::Tensor& view : TensorsOf(stack->back())) {
    if (!view.has_storage()) continue;
    for (auto& [name, calls] : active->results->calls)
      for (KeptResults::Call& call : calls)
        if (std::any_of(call.watched.begin(), call.watched.end(),
                        [storage = view.storage().unsafeGetStorageImpl()](const auto& watched) {
                          return watched.storage == storage;
                        }))
          call.watched.push_back(Watch(view));
  }
}

// Once for each operator, and for good: a kernel that is taken away while another thread calls it
// would be a race.
template <auto* kKernel>
void Intercept(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* const registered = new std::map<std::string, c10::RegistrationHandleRAII>();
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string name = NameOf(op.operator_name());
  if (registered->count(name) > 0) return;
  registered->emplace(name, c10::Dispatcher::singleton().registerImpl(
                                op.operator_name(), c10::DispatchKey::ADInplaceOrView,
                                c10::KernelFunction::makeFromBoxedFunction<kKernel>(), std::nullopt,
                                nullptr, "lockstep selective checkpoint"));
}

void InterceptHidingOperators() {
  for (const char* name :
       {"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"})
    for (const char* overload : {"", "Tensor"})
      if (const auto op = c10::Dispatcher::singleton().findSchema({name, overload}))
        Intercept<&HidingKernel>(*op);
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
  if (op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)) return "has no tensor inputs";
  return "";
}

}  // namespace

bool KeptResults::Call::IsModified() const {
  return results.empty() || std::any_of(watched.begin(), watched.end(), [](const Watched& w) {
           return w.counter.current_version() != w.version;
         });
}

void KeptResults::DropModified() {
  for (auto& [name, of_name] : calls)
    for (Call& call : of_name)
      if (call.IsModified()) call = Call();
}

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
      const std::string reason = Problem(*op);
      if (!reason.empty()) {
        problem = reason;
        continue;
      }
      Intercept<&Kernel>(*op);
      selection->names_.insert(name);
      is_selected = true;
    }
    TORCH_CHECK_VALUE(is_known, "checkpoint: there is no operator \"", wanted,
                      "\"; a selection names them as \"aten::mm\", or \"aten::sum.dim_IntList\" "
                      "for one overload");
    TORCH_CHECK_VALUE(is_selected, "checkpoint: results of ", wanted, " cannot be kept: it ",
                      problem);
  }
  InterceptHidingOperators();
  return selection;
}

std::vector<std::string> Selection::Names() const {
  std::vector<std::string> names;
  for (const c10::OperatorName& name : names_) names.push_back(NameOf(name));
  return names;
}

SelectionScope::SelectionScope(const Selection* selection, KeptResults* results, Mode mode)
    : active_{selection, results, mode, {}}, outer_(active) {
  active = selection == nullptr ? nullptr : &active_;
}

SelectionScope::~SelectionScope() {
  active = outer_;
  if (active_.selection != nullptr && active_.mode == Mode::kForward)
    active_.results->DropModified();
}

}  // namespace lockstep::checkpoint
