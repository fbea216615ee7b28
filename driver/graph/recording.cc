#include "driver/graph/recording.h"

#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <string_view>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/clone.h"
#include "absl/strings/str_cat.h"
#include "base/torch/values.h"
#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"
#include "driver/graph/values.h"
#include "torch/library.h"

// An operator with a kernel below autograd is one operation of the tape. Operators that this kernel
// calls are part of it. Any other operator is decomposed: its kernel runs here, and the recording
// notes the operators that it calls. Views need no operation, because an alias of a tensor has its
// shape and strides.

namespace lockstep::driver {
namespace {

constexpr c10::DispatchKey kKey = base::kRecordingKey;
// Numbers that libtorch makes without an operator, as the 2 of x * 2.
constexpr size_t kConstantBytes = 16;

thread_local Recording* active = nullptr;

// The allocator of libtorch for CPUs, which also tells a recording what it allocates.
class NotingAllocator : public c10::Allocator {
 public:
  explicit NotingAllocator(c10::Allocator* allocator) : allocator_(allocator) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = allocator_->allocate(bytes);
    if (active != nullptr) active->NoteAllocated(data.get());
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return allocator_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    allocator_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const allocator_;
};

// Once and for good: tensors keep pointers to their allocator.
void InstallAllocator() {
  static auto* const allocator = [] {
    auto* const noting = new NotingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(noting, /*priority=*/100);
    return noting;
  }();
  (void)allocator;
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Operators that make memory without values.
bool MakesEmpty(std::string_view name) {
  return IsOneOf(name, {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty",
                        "aten::empty_permuted"});
}

// Operators that are known to be an empty tensor and an operator that writes into it. A replay
// writes into the same memory, where the whole operator would allocate.
bool FillsNewMemory(std::string_view name) {
  return IsOneOf(name, {"aten::clone", "aten::_to_copy", "aten::zeros", "aten::ones", "aten::full",
                        "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::new_zeros",
                        "aten::new_ones", "aten::new_full"});
}

// Operators that return what depends on shapes alone, though no tensor.
bool ReturnsMetadata(std::string_view name) { return name == "aten::_fused_sdp_choice"; }

// Operators that give a tensor other memory, or other memory's size.
bool ReplacesMemory(std::string_view name) {
  return IsOneOf(name, {"aten::resize_", "aten::resize_as_", "aten::set_", "aten::set_data"});
}

bool IsWritten(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool Writes(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), IsWritten);
}

// Returns whether the operator only returns other views of its arguments.
bool IsView(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& returns = op.schema().returns();
  return !returns.empty() && !Writes(op) &&
         std::all_of(returns.begin(), returns.end(),
                     [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// Returns whether the operator is one operation. A convolution is, although it has one kernel for
// all devices: what it calls to compute is no operator.
bool IsWhole(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
          !FillsNewMemory(op.operator_name().name));
}

std::string StateOf(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  return std::string(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
}

// Runs what the recording does for itself past it.
struct Unrecorded {
  c10::impl::ExcludeDispatchKeyGuard guard{kKey};
};

void Intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (active == nullptr) return op.redispatchBoxed(below, stack);
  active->Call(op, below, stack);
}

static_assert(kKey == c10::DispatchKey::Fake);
TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Intercept>());
}

}  // namespace

Recording::Recording(Tape* tape) : tape_(tape), include_(kKey) {
  TORCH_CHECK(active == nullptr, "a graph is being recorded already");
  TORCH_INTERNAL_ASSERT(tape->operations_.empty());
  InstallAllocator();
  const Unrecorded unrecorded;
  generators_.push_back({at::detail::getDefaultCPUGenerator(), {}});
  NoteDraws();
  active = this;
}

Recording::~Recording() { active = nullptr; }

void Recording::CheckArgument(const c10::OperatorHandle& op, const at::Tensor& tensor) const {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized(),
              op.operator_name().name, " of a tensor that is ", tensor.layout(), " on ",
              tensor.device(), " cannot be recorded: a graph on the CPU holds dense tensors there");
}

Recording::Memory& Recording::MemoryOf(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const auto found = memories_.find(storage.unsafeGetStorageImpl());
  if (found != memories_.end()) return found->second;
  const bool is_new = allocated_.count(storage.data()) > 0;
  Memory memory{storage, !is_new                              ? Origin::kBefore
                         : storage.nbytes() <= kConstantBytes ? Origin::kConstant
                                                              : Origin::kNothing};
  return memories_.emplace(storage.unsafeGetStorageImpl(), std::move(memory)).first->second;
}

// Makes a replay start with the number that the recording started with.
void Recording::RestoreConstant(const at::Tensor& tensor) {
  static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  const at::Tensor alias = AliasOf(tensor);
  // First of all, because an operator may have read the number before another writes it.
  tape_->operations_.insert(tape_->operations_.begin(),
                            Tape::Operation{copy, {alias, at::clone(alias), false}, {}, false});
}

void Recording::NoteRead(const c10::OperatorHandle& op, const at::Tensor& tensor, bool is_written) {
  if (tensor.numel() == 0 || tensor.storage().nbytes() == 0) return;
  Memory& memory = MemoryOf(tensor);
  if (memory.origin == Origin::kConstant && is_written) RestoreConstant(tensor);
  if (memory.origin == Origin::kBefore) {
    const auto [place, is_first] =
        externals_.emplace(tensor.unsafeGetTensorImpl(), tape_->externals_.size());
    if (is_first)
      tape_->externals_.push_back({tensor, tensor.storage().unsafeGetStorageImpl(),
                                   tensor.storage().data(), tensor.requires_grad(),
                                   AliasOf(tensor)});
    tape_->externals_[place->second].is_written |= is_written;
    if (tensor.requires_grad() && tensor.is_leaf()) NoteLeaf(tensor, true);
  }
  TORCH_CHECK(memory.origin != Origin::kNothing || is_written || IsView(op),
              op.operator_name().name, " reads a tensor of shape ", tensor.sizes(),
              " whose values no operator computed while the graph was recorded; make it outside of "
              "the graph's function");
}

void Recording::NoteLeaf(const at::Tensor& tensor, bool needs_grad_before) {
  const bool is_first = leaves_.emplace(tensor.unsafeGetTensorImpl(), tape_->leaves_.size()).second;
  if (is_first) tape_->leaves_.push_back({tensor, tensor.grad(), {}, needs_grad_before});
}

void Recording::NoteGradRead(const at::Tensor& tensor) {
  if (active != nullptr && tensor.is_leaf()) active->NoteLeaf(tensor, true);
}

void Recording::NoteGradReplaced(const at::Tensor& tensor) {
  if (active != nullptr && tensor.is_leaf()) active->NoteLeaf(tensor, false);
}

void Recording::CheckGenerators(const std::string& when) {
  for (Drawn& drawn : generators_)
    TORCH_CHECK(StateOf(drawn.generator) == drawn.state,
                "random numbers were drawn, or their generator's state was set, ", when,
                " and not by an operator; a graph cannot repeat that (a checkpointed region with "
                "dropout sets the state)");
}

void Recording::NoteDraws() {
  for (Drawn& drawn : generators_) drawn.state = StateOf(drawn.generator);
}

// Fills in the operation's results: tensors on memory that is not an argument's.
void Recording::NoteResults(const c10::OperatorHandle& op,
                            const std::vector<c10::IValue>& arguments,
                            const std::vector<c10::IValue>& stack, bool is_new_and_empty,
                            Tape::Operation* operation) {
  std::unordered_set<const c10::StorageImpl*> known;
  for (const c10::IValue& argument : arguments)
    ForEachTensor(argument, [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.has_storage())
        known.insert(tensor.storage().unsafeGetStorageImpl());
    });
  size_t index = 0;
  for (const c10::IValue& value : stack)
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      const size_t position = index++;
      if (!tensor.defined() || tensor.is_meta()) return;
      CheckArgument(op, tensor);
      const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
      if (!known.insert(storage).second) return;  // a view, or an argument that was written
      memories_.insert_or_assign(
          storage,
          Memory{tensor.storage(), is_new_and_empty ? Origin::kNothing : Origin::kOperator});
      if (is_new_and_empty) return;
      operation->results.push_back({position, AliasOf(tensor)});
    });
}

void Recording::Call(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                     torch::jit::Stack* stack) {
  if (!IsWhole(op)) return op.redispatchBoxed(below, stack);
  try {
    CallWhole(op, below, stack);
  } catch (const c10::Error& error) {
    if (refusal_.empty()) refusal_ = error.what_without_backtrace();
    throw;
  }
}

void Recording::CallWhole(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                          torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  const c10::FunctionSchema& schema = op.schema();
  const std::vector<c10::IValue> arguments(
      stack->end() - static_cast<int64_t>(schema.arguments().size()), stack->end());

  bool has_meta = false, has_memory_from_before = false;
  for (const c10::IValue& argument : arguments)
    ForEachTensor(argument, [&](const at::Tensor& tensor) {
      has_meta |= tensor.defined() && tensor.is_meta();
    });
  const Unrecorded unrecorded;
  if (has_meta) return op.redispatchBoxed(below, stack);

  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written = IsWritten(schema.arguments()[i]);
    ForEachTensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      CheckArgument(op, tensor);
      NoteRead(op, tensor, is_written);
      has_memory_from_before |= MemoryOf(tensor).origin == Origin::kBefore;
    });
    if (arguments[i].isGenerator()) {
      at::Generator generator = arguments[i].toGenerator();
      const auto is_it = [&](const Drawn& drawn) { return drawn.generator == generator; };
      if (std::none_of(generators_.begin(), generators_.end(), is_it))
        generators_.push_back({generator, StateOf(generator)});
    }
  }
  TORCH_CHECK(name.rfind("c10d::", 0) != 0, name,
              " is a collective, which a graph cannot repeat: leave out sharding.data_parallel and "
              "the like on one rank");
  for (const c10::Argument& result : schema.returns()) {
    const c10::TypeKind kind = result.type()->kind();
    TORCH_CHECK(kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType ||
                    ReturnsMetadata(name),
                name, " returns a value to the program, which a graph cannot wait for");
  }
  TORCH_CHECK(name != "aten::repeat_interleave" || op.operator_name().overload_name != "Tensor" ||
                  !arguments[1].isNone(),
              name, " returns a shape that depends on values: give it an output_size");
  const bool changes_shape = op.hasTag(at::Tag::inplace_view);
  TORCH_CHECK(!ReplacesMemory(name) && !(changes_shape && has_memory_from_before), name,
              " changes the shape or the memory of a tensor, and a graph keeps both (a module of "
              "sharding.fully_shard does so at each gather)");
  CheckGenerators(absl::StrCat("before ", name));
  const bool grad_mode = at::GradMode::is_enabled();
  op.redispatchBoxed(below, stack);
  NoteDraws();

  Tape::Operation operation{op, {}, {}, grad_mode};
  const std::vector<c10::IValue> results(
      stack->end() - static_cast<int64_t>(schema.returns().size()), stack->end());
  NoteResults(op, arguments, results, MakesEmpty(name), &operation);
  const bool is_view =
      operation.results.empty() && !schema.returns().empty() && (changes_shape || !Writes(op));
  if (is_view) return;
  // After the call, which may have given an out argument its shape.
  for (size_t i = 0; i < arguments.size(); ++i) {
    operation.arguments.push_back(AliasOf(arguments[i]));
    if (!IsWritten(schema.arguments()[i])) continue;
    ForEachTensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      Memory& memory = MemoryOf(tensor);
      if (memory.origin != Origin::kBefore) memory.origin = Origin::kOperator;
    });
  }
  tape_->operations_.push_back(std::move(operation));
}

void Recording::Finish() {
  TORCH_CHECK(refusal_.empty(), "the function caught an operator's error: ", refusal_);
  const Unrecorded unrecorded;
  CheckGenerators("at the end of the graph's function");
  for (const Tape::External& external : tape_->externals_)
    TORCH_CHECK(external.tensor.storage().unsafeGetStorageImpl() == external.storage &&
                    external.storage->data() == external.data,
                "the memory of a tensor of shape ", external.tensor.sizes(),
                " moved while the graph was recorded");
  // A leaf that only the tape knows was made by the step, for example for a tile's backward.
  auto& leaves = tape_->leaves_;
  std::erase_if(leaves, [&](const Tape::Leaf& leaf) {
    return leaf.tensor.use_count() == 1 + externals_.count(leaf.tensor.unsafeGetTensorImpl());
  });
  for (Tape::Leaf& leaf : leaves) leaf.grad_after = leaf.tensor.grad();
  Tape::Stats& stats = tape_->stats_;
  stats.operators = static_cast<int64_t>(tape_->operations_.size());
  for (const Tape::Operation& operation : tape_->operations_)
    ++(operation.results.empty() ? stats.in_place : stats.allocating);
  for (const auto& [address, memory] : memories_)
    if (memory.origin != Origin::kBefore)
      stats.bytes += static_cast<int64_t>(memory.storage.nbytes());
}

}  // namespace lockstep::driver
