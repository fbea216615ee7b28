#include "driver/lua/operators/operators.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/ops/scalar_tensor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/torch/weight_copies.h"
#include "c10/core/InferenceMode.h"
#include "driver/lua/operators/arguments.h"
#include "driver/lua/operators/conversion.h"
#include "driver/lua/operators/explain.h"
#include "driver/lua/operators/overloads.h"
#include "driver/lua/operators/unboxed.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

using Values = std::vector<c10::IValue>;

// A choice made, by what it was made for: a call site repeats itself.
struct Remembered {
  uint64_t classes;                   // of the arguments in order, the keywords' last
  std::vector<std::string> keywords;  // their names in order
  Binding binding;
};

// Calls of tensors alone need no boxing: the kernel is called as C++ would.
using Unary = c10::TypedOperatorHandle<at::Tensor(const at::Tensor&)>;
using Binary = c10::TypedOperatorHandle<at::Tensor(const at::Tensor&, const at::Tensor&)>;
using BinaryAlpha =
    c10::TypedOperatorHandle<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>;

}  // namespace

struct Operator {
  std::string name;
  std::vector<Overload> overloads;
  bool is_factory = false;  // makes tensors from no tensor: takes dtype, device, pin_memory
  // A deque: a nested call may add to it while an outer one still reads its own.
  std::deque<Remembered> remembered;
  // The overload of a call of one or two tensors, if it has one of these forms. Set by that call.
  std::optional<Unary> unary;
  std::optional<Binary> binary;
  std::optional<BinaryAlpha> binary_alpha;  // with alpha = 1: add, sub
  bool is_arithmetic = false;               // add, sub, mul, div: numbers stand for tensors
  bool is_random = false;                   // draws from a generator
  bool parts_versions = false;              // see PartsVersions
};

namespace {

// Named dimensions (names, Dimname) are a prototype that PyTorch itself warns about.
bool TakesNames(const c10::OperatorName& name) {
  std::string overload = name.overload_name;
  for (char& c : overload) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return absl::StrContains(overload, "names") || absl::StrContains(overload, "dimname");
}

// Operators of other libraries have the name that Lua reaches them by: "ops.lockstep.swiglu".
constexpr char kOtherLibraries[] = "ops.";

std::string NameInLua(const std::string& name) {
  constexpr char kAten[] = "aten::";
  if (absl::StartsWith(name, kAten)) return name.substr(sizeof(kAten) - 1);
  const size_t colons = name.find("::");
  return absl::StrCat(kOtherLibraries, name.substr(0, colons), ".", name.substr(colons + 2));
}

// All schemas by operator name, in an order that does not change from run to run.
const std::map<std::string, std::vector<c10::OperatorName>>& Index() {
  static const auto* const kIndex = [] {
    auto* index = new std::map<std::string, std::vector<c10::OperatorName>>();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (TakesNames(name)) continue;
      if (!c10::Dispatcher::singleton().findSchema(name).has_value()) continue;
      (*index)[NameInLua(name.name)].push_back(name);
    }
    for (auto& [name, overloads] : *index) {
      std::sort(overloads.begin(), overloads.end(),
                [](const auto& a, const auto& b) { return a.overload_name < b.overload_name; });
    }
    return index;
  }();
  return *kIndex;
}

// Returns whether tensors share memory after a call, but no version: autograd sees no write to one
// of them as a write to another. Kept casts of weights must.
bool PartsVersions(const std::string& name) {
  constexpr const char* kNames[] = {
      "data",         "set_data",     "set",          "set_",
      "unsafe_chunk", "unsafe_split", "_unsafe_view", "unsafe_split_with_sizes"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// --- Calling -------------------------------------------------------------------------------------

// Four bits for each argument's class, the keywords' last. 0 where there are too many to be
// remembered.
uint64_t Classes(lua_State* state, const Arguments& arguments) {
  constexpr size_t kMaxRemembered = 14;
  if (arguments.num_positional + arguments.keywords.size() > kMaxRemembered) return 0;
  uint64_t classes = static_cast<uint64_t>(arguments.num_positional) + 1;
  for (int i = 1; i <= arguments.num_positional; ++i) {
    classes = classes << 4 | static_cast<uint64_t>(Classify(state, i));
  }
  for (const KeywordArgument& keyword : arguments.keywords) {
    classes = classes << 4 | static_cast<uint64_t>(Classify(state, keyword.index));
  }
  return classes;
}

bool SameKeywords(const std::vector<std::string>& names,
                  const std::vector<KeywordArgument>& keywords) {
  if (names.size() != keywords.size()) return false;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != keywords[i].name) return false;
  }
  return true;
}

bool IsPlainTensor(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kTensor && !parameter.optional && !parameter.written;
}

// Where a call of tensors alone was bound to an overload of a form that can be called unboxed.
void RememberDirect(Operator& op, const Overload& overload, size_t num_tensors) {
  const std::vector<Parameter>& parameters = overload.parameters;
  if (op.parts_versions) return;
  if (overload.result_argument != std::vector<int>{-1}) return;
  if (overload.handle.schema().returns()[0].type()->kind() != c10::TypeKind::TensorType) return;
  for (size_t i = 0; i < num_tensors; ++i) {
    if (i >= parameters.size() || !IsPlainTensor(parameters[i])) return;
  }
  if (num_tensors == 1 && parameters.size() == 1)
    op.unary = overload.handle.typed<at::Tensor(const at::Tensor&)>();
  if (num_tensors != 2) return;
  if (parameters.size() == 2) {
    op.binary = overload.handle.typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  } else if (parameters.size() == 3 && parameters[2].name == "alpha") {
    op.binary_alpha =
        overload.handle
            .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>();
  }
}

// The overload for these arguments: remembered, or resolved and remembered. `unremembered` is where
// it is kept when it is not to be.
const Binding& Choose(lua_State* state, Operator& op, const Arguments& arguments,
                      std::optional<Binding>& unremembered) {
  const uint64_t classes = Classes(state, arguments);
  for (const Remembered& remembered : op.remembered) {
    if (remembered.classes == classes && SameKeywords(remembered.keywords, arguments.keywords))
      return remembered.binding;
  }
  Binding binding = Resolve(state, op.name, op.overloads, arguments);
  constexpr size_t kMaxChoices = 256;
  if (classes == 0 || op.remembered.size() == kMaxChoices)
    return unremembered.emplace(std::move(binding));
  std::vector<std::string> names;
  for (const KeywordArgument& keyword : arguments.keywords) names.emplace_back(keyword.name);
  return op.remembered.emplace_back(Remembered{classes, std::move(names), std::move(binding)})
      .binding;
}

c10::IValue GatherSpread(lua_State* state, int from, int to) {
  c10::List<int64_t> values;
  for (int i = from; i <= to; ++i) values.push_back(ReadInteger(state, i, "an element"));
  return values;
}

// The operator's arguments. Throws what Convert and its kin throw, with the operator's name before
// it.
void FillValues(lua_State* state, const Operator& op, const Binding& binding, Values& values) {
  const Overload& overload = *binding.overload;
  values.clear();
  values.reserve(overload.parameters.size());
  try {
    for (size_t i = 0; i < overload.parameters.size(); ++i) {
      const int source = binding.sources[i];
      if (source == 0) {
        values.push_back(*overload.parameters[i].default_value);
      } else if (source == binding.spread_from) {
        values.push_back(GatherSpread(state, source, binding.spread_to));
      } else {
        values.push_back(Convert(state, source, overload.parameters[i]));
      }
    }
  } catch (const Error& error) {
    throw Error(absl::StrCat("torch.", op.name, ": ", error.what()));
  }
}

bool IsOutOfMemory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         absl::StrContains(error.msg(), "can't allocate memory");
}

// From torch 2.15 on some messages begin with the operator's name.
std::string MessageOf(const Operator& op, const c10::Error& error) {
  const std::string message = KernelMessage(error);
  return std::string(absl::StripPrefix(message, absl::StrCat(op.name, ": ")));
}

void AddTensors(const Values& values, std::vector<at::Tensor>& tensors) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  }
}

void CallPartingVersions(const Overload& overload, Values& values) {
  std::vector<at::Tensor> tensors;
  AddTensors(values, tensors);
  overload.handle.callBoxed(values);
  AddTensors(values, tensors);
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.has_storage())
      base::CountWritesThrough(tensor, tensor.storage());
}

void Execute(lua_State* state, const Operator& op, const Binding& binding, Values& values) {
  const Overload& overload = *binding.overload;
  const bool is_unboxed = overload.unboxed && !op.parts_versions;
  if (!is_unboxed) FillValues(state, op, binding, values);
  try {
    if (is_unboxed) {
      values.emplace_back(overload.unboxed(state, binding));
    } else if (op.parts_versions) {
      CallPartingVersions(overload, values);
    } else {
      overload.handle.callBoxed(values);
    }
    return;
  } catch (const c10::Error& error) {
    if (!IsOutOfMemory(error)) {
      FillValues(state, op, binding, values);  // the call has taken them
      throw Error(absl::StrCat("torch.", op.name, ": ", Explain(MessageOf(op, error), values)));
    }
  }
  // Dead tensors may still wait for the collector: free them and try once more.
  lua_gc(state, LUA_GCCOLLECT, 0);
  FillValues(state, op, binding, values);
  try {
    overload.handle.callBoxed(values);
  } catch (const c10::Error& error) {
    throw Error(absl::StrCat(
        "torch.", op.name, ": out of memory, also after freeing what Lua no longer uses (",
        LiveTensorBytes() >> 20, " MiB are still in use): ", KernelMessage(error)));
  }
}

// A vector that keeps its memory between calls; a nested call finds the spare taken and makes its
// own.
class SpareValues {
 public:
  SpareValues() { values.swap(spare); }
  ~SpareValues() {
    values.clear();
    values.swap(spare);
  }
  Values values;

 private:
  static thread_local Values spare;
};
thread_local Values SpareValues::spare;

// The dispatcher hands out a dtype as its number.
bool IsDtype(const c10::Argument& result) {
  return result.real_type()->kind() == c10::TypeKind::ScalarTypeType;
}

int PushResults(lua_State* state, const Binding& binding, Values& values) {
  const std::vector<c10::Argument>& returns = binding.overload->handle.schema().returns();
  lua_checkstack(state, static_cast<int>(values.size()) + 4);
  for (size_t i = 0; i < values.size(); ++i) {
    const int argument =
        i < binding.overload->result_argument.size() ? binding.overload->result_argument[i] : -1;
    const int source = argument >= 0 ? binding.sources[argument] : 0;
    // x:add_(1) gives back x itself, not another value for the same tensor.
    if (values[i].isTensor()) {
      if (source != 0) {
        lua_pushvalue(state, source);
      } else {
        PushTensor(state, std::move(values[i]).toTensor());
      }
    } else if (IsDtype(returns[i]) && values[i].isInt()) {
      PushDtype(state, static_cast<at::ScalarType>(values[i].toInt()));
    } else {
      PushValue(state, values[i]);
    }
  }
  return static_cast<int>(values.size());
}

bool HoldsKeywords(lua_State* state, int index) {
  if (lua_type(state, index) != LUA_TTABLE) return false;
  lua_pushnil(state);
  if (lua_next(state, index) == 0) return false;
  const bool named = lua_type(state, -2) == LUA_TSTRING;
  lua_pop(state, 2);
  return named;
}

// Pushes the values of the keyword table at `index` and lists them. `requires_grad` is not a
// parameter of any schema: factories take it together with dtype and device, as in PyTorch.
std::vector<KeywordArgument> SpreadKeywords(lua_State* state, int index, const Operator& op,
                                            bool& requires_grad) {
  std::vector<KeywordArgument> keywords;
  lua_pushnil(state);
  while (lua_next(state, index) != 0) {
    if (lua_type(state, -2) != LUA_TSTRING) {
      throw Error(absl::StrCat("torch.", op.name, ": the table of keyword arguments also holds ",
                               TypeName(state, -2)));
    }
    const char* name = lua_tostring(state, -2);
    if (op.is_factory && std::strcmp(name, "requires_grad") == 0) {
      requires_grad =
          ReadBoolean(state, -1, absl::StrCat("torch.", op.name, ": requires_grad").c_str());
      lua_pop(state, 1);
      continue;
    }
    lua_checkstack(state, 8);
    lua_insert(state, -2);  // the value stays below, the key goes on
    lua_pushvalue(state, -1);
    lua_remove(state, -2);
    keywords.push_back({name, lua_gettop(state) - 1});
  }
  return keywords;
}

int CallWithKeywords(lua_State* state, Operator& op, int num_arguments) {
  bool requires_grad = false;
  Arguments arguments;
  arguments.num_positional = num_arguments - 1;
  arguments.keywords = SpreadKeywords(state, num_arguments, op, requires_grad);
  std::optional<Binding> unremembered;
  const Binding& binding = Choose(state, op, arguments, unremembered);
  SpareValues spare;
  Execute(state, op, binding, spare.values);
  if (requires_grad) {
    PrefixErrors(absl::StrCat("torch.", op.name), [&] {
      for (c10::IValue& value : spare.values) value.toTensor().set_requires_grad(true);
    });
  }
  return PushResults(state, binding, spare.values);
}

// Caches numbers as tensors of no dimension. Otherwise ATen would make one for each x + 1, and two
// more in its backward. They are never written to, and Lua never sees them. Only for float32 and
// float64: kernels of these dtypes round a number to the tensor's dtype before they compute, and so
// does this cache.
class WrappedNumbers {
 public:
  // Returns nullptr if `beside`, the other operand, has another dtype.
  const at::Tensor* Get(double number, const at::Tensor& beside) {
    const at::ScalarType dtype = beside.scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble) return nullptr;
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    Entry& entry = entries_[(bits >> 48 ^ bits >> 40 ^ static_cast<uint64_t>(dtype)) % kEntries];
    if (entry.bits != bits || entry.dtype != dtype || !entry.tensor.defined()) {
      c10::InferenceMode no_inference(false);
      // Rounded as a kernel would: 1e300 is an infinite float32, which scalar_tensor would refuse.
      const at::Tensor exact = at::scalar_tensor(number, at::device(at::kCPU).dtype(at::kDouble));
      entry = {bits, dtype, exact.to(dtype)};
      entry.tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return &entry.tensor;
  }

 private:
  static constexpr size_t kEntries = 64;
  struct Entry {
    uint64_t bits = 0;
    at::ScalarType dtype = at::kFloat;
    at::Tensor tensor;
  };
  Entry entries_[kEntries];
};

// One or two tensors, or a tensor and a number, to an operator known to take just these: most calls
// of a training step.
bool CallDirectly(lua_State* state, const Operator& op, int num_arguments) {
  if (num_arguments == 0 || num_arguments > 2) return false;
  const bool is_unary = num_arguments == 1;
  if (is_unary ? !op.unary.has_value() : !op.binary.has_value() && !op.binary_alpha.has_value())
    return false;
  const at::Tensor* a = TensorAt(state, 1);
  const at::Tensor* b = is_unary ? a : TensorAt(state, 2);
  if (op.is_arithmetic && (a == nullptr) != (b == nullptr)) {
    static thread_local WrappedNumbers numbers;
    const at::Tensor*& missing = a == nullptr ? a : b;
    const int index = a == nullptr ? 1 : 2;
    if (lua_type(state, index) != LUA_TNUMBER) return false;
    missing = numbers.Get(lua_tonumber(state, index), a == nullptr ? *b : *a);
  }
  if (a == nullptr || b == nullptr) return false;
  at::Tensor result;
  try {
    result = is_unary                ? op.unary->call(*a)
             : op.binary.has_value() ? op.binary->call(*a, *b)
                                     : op.binary_alpha->call(*a, *b, 1);
  } catch (const c10::Error& error) {
    if (IsOutOfMemory(error)) return false;  // the general way frees memory and tries again
    throw Error(absl::StrCat("torch.", op.name, ": ", MessageOf(op, error)));
  }
  PushTensor(state, std::move(result));
  return true;
}

// Where random numbers are refused on this thread, or nullptr.
thread_local const char* random_refused_in = nullptr;

int CallClosure(lua_State* state) {
  return CallOperator(state, *static_cast<Operator*>(lua_touserdata(state, lua_upvalueindex(1))));
}

}  // namespace

Operator* FindOperator(const std::string& name) {
  static thread_local std::map<std::string, std::unique_ptr<Operator>> operators;
  auto& op = operators[name];
  if (op == nullptr) {
    const auto found = Index().find(name);
    if (found == Index().end()) {
      operators.erase(name);
      return nullptr;
    }
    op = std::make_unique<Operator>();
    op->name = name;
    op->parts_versions = PartsVersions(name);
    op->is_arithmetic = name == "add" || name == "sub" || name == "mul" || name == "div";
    for (const c10::OperatorName& overload : found->second) {
      op->overloads.push_back(DescribeOverload(*c10::Dispatcher::singleton().findSchema(overload)));
      op->overloads.back().unboxed = FindUnboxedCall(op->overloads.back());
      if (op->is_arithmetic && overload.overload_name == "Tensor")
        RememberDirect(*op, op->overloads.back(), 2);
      op->is_random |= op->overloads.back().handle.hasTag(at::Tag::nondeterministic_seeded);
      for (const Parameter& parameter : op->overloads.back().parameters)
        op->is_factory |= parameter.name == "pin_memory";
    }
  }
  return op.get();
}

RandomRefused::RandomRefused(const char* where)
    : before_(std::exchange(random_refused_in, where)) {}

RandomRefused::~RandomRefused() { random_refused_in = before_; }

void CheckRandomAllowed(const std::string& function) {
  if (random_refused_in == nullptr) return;
  throw Error(
      absl::StrCat("torch.", function, ": ", random_refused_in,
                   " cannot draw from torch's generator, whose numbers would then depend on "
                   "the number of workers; use math.random, which is seeded for each "
                   "sample"));
}

int CallOperator(lua_State* state, Operator& op) {
  if (op.is_random) CheckRandomAllowed(op.name);
  const int num_arguments = lua_gettop(state);
  if (CallDirectly(state, op, num_arguments)) return 1;
  if (num_arguments > 0 && HoldsKeywords(state, num_arguments)) {
    return CallWithKeywords(state, op, num_arguments);
  }
  std::optional<Binding> unremembered;
  const Binding& binding = Choose(state, op, {num_arguments, {}}, unremembered);
  SpareValues spare;
  Execute(state, op, binding, spare.values);
  if (num_arguments <= 2 && num_arguments > 0 && TensorAt(state, 1) != nullptr &&
      TensorAt(state, num_arguments) != nullptr) {
    RememberDirect(op, *binding.overload, static_cast<size_t>(num_arguments));
  }
  return PushResults(state, binding, spare.values);
}

void PushOperator(lua_State* state, Operator& op) {
  lua_pushlightuserdata(state, &op);
  lua_pushcclosure(state, CallClosure, 1);
}

std::vector<std::string> OperatorNames() {
  std::vector<std::string> names;
  for (const auto& [name, overloads] : Index()) {
    if (!absl::StartsWith(name, kOtherLibraries)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> OperatorSchemas(const std::string& name) {
  std::vector<std::string> schemas;
  if (const Operator* op = FindOperator(name)) {
    for (const Overload& overload : op->overloads) schemas.push_back(SchemaText(overload, name));
  }
  return schemas;
}

bool IsMethod(const Operator& op) {
  return std::any_of(op.overloads.begin(), op.overloads.end(), [](const Overload& overload) {
    return !overload.parameters.empty() && overload.parameters[0].kind == ParameterKind::kTensor &&
           !overload.parameters[0].keyword_only;
  });
}

}  // namespace lockstep::lua
