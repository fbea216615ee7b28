#include "base/torch/weight_copies.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/Stream.h"
#include "c10/core/TensorImpl.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "c10/util/intrusive_ptr.h"

namespace lockstep::base {
namespace {

struct Form {
  WeightCopy copy;
  std::optional<c10::Stream> stream;
  bool is_given = false;
};

// The stream that a kernel runs on now.
std::optional<c10::Stream> StreamOf(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

const c10::VariableVersion& CounterOf(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter();
}

// Returns whether two tensors count their writes together. The counter's address is private, but
// all that a VariableVersion has.
bool AreSame(const c10::VariableVersion& a, const c10::VariableVersion& b) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  return memcmp(&a, &b, sizeof(void*)) == 0;
}

// Returns the address of a weight's memory, also where reading it is an error.
const void* AddressOf(const at::Tensor& weight) {
  return weight.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

// The counters of tensors that share a storage, but no version.
struct Counters {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::vector<c10::VariableVersion> counters;
  uint64_t writes_of_gone = 0;  // of counters that no tensor has any more

  void DropThoseOfGone() {
    std::erase_if(counters, [&](const c10::VariableVersion& counter) {
      if (!counter.unique()) return false;
      writes_of_gone += counter.current_version();
      return true;
    });
  }
  uint64_t Writes() const {
    uint64_t writes = writes_of_gone;
    for (const c10::VariableVersion& counter : counters) writes += counter.current_version();
    return writes;
  }
};

class Weight {
 public:
  // `writes`: through aliases that have other counters.
  Weight(const at::Tensor& weight, uint64_t writes)
      : storage_(weight.storage().getWeakStorageImpl()),
        counter_(CounterOf(weight)),
        version_(counter_.current_version()),
        writes_(writes),
        data_(AddressOf(weight)),
        dtype_(weight.scalar_type()),
        sizes_(weight.sizes()),
        strides_(weight.strides()) {}

  // The counter also counts writes through aliases.
  bool IsCurrent() const {
    return storage_.use_count() > 0 && counter_.current_version() == version_;
  }
  bool Is(const at::Tensor& weight, uint64_t writes) const {
    return IsCurrent() && writes_ == writes && AreSame(counter_, CounterOf(weight)) &&
           data_ == AddressOf(weight) && dtype_ == weight.scalar_type() &&
           sizes_ == weight.sizes() && strides_ == weight.strides();
  }

  std::map<int64_t, Form> forms;

 private:
  // Keeps the address from being used by another storage.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  c10::VariableVersion counter_;
  uint32_t version_;
  uint64_t writes_;
  const void* data_;
  at::ScalarType dtype_;
  at::DimVector sizes_, strides_;
};

// A storage, and a weight's place in it.
using Key = std::pair<const c10::StorageImpl*, int64_t>;

Key KeyOf(const at::Tensor& weight) {
  return {weight.storage().unsafeGetStorageImpl(), weight.storage_offset()};
}

struct Kept {
  std::mutex mutex;
  std::map<Key, Weight> weights;
  std::map<const c10::StorageImpl*, Counters> other_counters;
  size_t calls = 0;          // of KeepCopy since the last one that looked for copies to free
  size_t counted_calls = 0;  // likewise, of CountWritesThrough

  uint64_t WritesThroughAliases(const at::Tensor& weight) const {
    const auto found = other_counters.find(weight.storage().unsafeGetStorageImpl());
    return found == other_counters.end() ? 0 : found->second.Writes();
  }
};

Kept& AllKept() {
  static auto* const kept = new Kept();  // no tensor is freed at exit, after its device
  return *kept;
}

// A result of an operator with a graph is gone after the step.
bool IsWeight(const at::Tensor& tensor) {
  return tensor.is_leaf() && !tensor.is_inference() && tensor.has_storage() &&
         (tensor.is_cpu() || tensor.is_cuda());
}

void Keep(const at::Tensor& weight, int64_t form, Form one) {
  Kept& kept = AllKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  const auto found = kept.weights.find(KeyOf(weight));
  const uint64_t writes = kept.WritesThroughAliases(weight);
  const bool has_changed = found != kept.weights.end() && !found->second.Is(weight, writes);
  if (has_changed) kept.weights.erase(found);
  // Each call pays for looking at a few weights.
  if (has_changed || ++kept.calls > 8 + kept.weights.size() / 4) {
    kept.calls = 0;
    std::erase_if(kept.weights, [](const auto& one) { return !one.second.IsCurrent(); });
  }
  Weight& entry = kept.weights.try_emplace(KeyOf(weight), weight, writes).first->second;
  entry.forms.insert_or_assign(form, std::move(one));
}

// --- Writes that libtorch does not count

bool IsWritten(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Takes the place of the operator's kernel for autograd, which has no derivative: raises the
// versions of the tensors that it writes to.
void CountWrites(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!IsWritten(arguments[i])) continue;
    for (at::Tensor& tensor : torch::jit::peek(*stack, i, arguments.size()).toTensorVector())
      written.push_back(std::move(tensor));
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  for (const at::Tensor& tensor : written)
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// The fused optimizers of libtorch 2.11 to 2.15 leave versions as they are.
const bool fused_optimizers_count = [] {
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const char* name : {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_",
                           "aten::_fused_adagrad_"}) {
    for (const char* overload : {"", "tensor_lr"}) {
      const auto op = dispatcher.findSchema({name, overload});
      if (!op.has_value()) continue;
      for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA})
        handles->push_back(dispatcher.registerImpl(
            op->operator_name(), key, c10::KernelFunction::makeFromBoxedFunction<&CountWrites>(),
            std::nullopt, nullptr, "lockstep weight copies"));
    }
  }
  return true;
}();

// Returns a copy; `only_given`: one that GiveCopy has kept.
std::optional<WeightCopy> Find(const at::Tensor& weight, int64_t form, bool only_given) {
  if (!IsWeight(weight)) return std::nullopt;
  Kept& kept = AllKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  const auto found = kept.weights.find(KeyOf(weight));
  if (found == kept.weights.end() || !found->second.Is(weight, kept.WritesThroughAliases(weight)))
    return std::nullopt;
  const auto place = found->second.forms.find(form);
  if (place == found->second.forms.end()) return std::nullopt;
  const Form& one = place->second;
  if (!one.is_given && (only_given || one.stream != StreamOf(weight))) return std::nullopt;
  return one.copy;
}

}  // namespace

std::optional<WeightCopy> FindCopy(const at::Tensor& weight, int64_t form) {
  return Find(weight, form, /*only_given=*/false);
}

std::optional<WeightCopy> FindGivenCopy(const at::Tensor& weight, int64_t form) {
  return Find(weight, form, /*only_given=*/true);
}

void KeepCopy(const at::Tensor& weight, int64_t form, WeightCopy copy) {
  if (IsWeight(weight)) Keep(weight, form, {std::move(copy), StreamOf(weight)});
}

void GiveCopy(const at::Tensor& weight, int64_t form, WeightCopy copy) {
  TORCH_CHECK_VALUE(IsWeight(weight), "GiveCopy: expected a leaf on a CPU or a GPU");
  Keep(weight, form, {std::move(copy), std::nullopt, /*is_given=*/true});
}

void CountWritesThrough(const at::Tensor& alias, const c10::Storage& storage) {
  if (!alias.defined() || alias.is_inference()) return;
  Kept& kept = AllKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  // Each call pays for looking at a few storages.
  if (++kept.counted_calls > 8 + kept.other_counters.size() / 4) {
    kept.counted_calls = 0;
    std::erase_if(kept.other_counters,
                  [](const auto& one) { return one.second.storage.use_count() == 0; });
  }
  Counters& others =
      kept.other_counters
          .try_emplace(storage.unsafeGetStorageImpl(),
                       Counters{.storage = storage.getWeakStorageImpl(), .counters = {}})
          .first->second;
  const c10::VariableVersion& counter = CounterOf(alias);
  const auto is_same = [&](const c10::VariableVersion& one) { return AreSame(one, counter); };
  if (std::any_of(others.counters.begin(), others.counters.end(), is_same)) return;
  others.DropThoseOfGone();
  others.counters.push_back(counter);
}

void ForgetCopiesOf(const c10::Storage& storage) {
  Kept& kept = AllKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  const c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  const auto begin = kept.weights.lower_bound({impl, std::numeric_limits<int64_t>::min()});
  const auto end = kept.weights.upper_bound({impl, std::numeric_limits<int64_t>::max()});
  kept.weights.erase(begin, end);
}

void ForgetAllCopies() {
  Kept& kept = AllKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  for (auto& [key, weight] : kept.weights)
    std::erase_if(weight.forms, [](const auto& one) { return !one.second.is_given; });
  std::erase_if(kept.weights, [](const auto& one) { return one.second.forms.empty(); });
}

int64_t BytesOfCopies() {
  Kept& kept = AllKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  int64_t bytes = 0;
  for (const auto& [key, weight] : kept.weights)
    for (const auto& [form, one] : weight.forms)
      for (const at::Tensor& tensor : one.copy)
        bytes += one.is_given ? 0 : static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace lockstep::base
