#include "driver/lua/operators.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/lua/arguments.h"
#include "driver/lua/stack.h"
#include "driver/lua/tensor.h"
#include "driver/lua/vm.h"

namespace lockstep::lua {
namespace {

using Values = std::vector<c10::IValue>;

struct Overload {
  c10::OperatorHandle handle;
  std::vector<Parameter> parameters = {};
  size_t num_positional = 0;         // the others are keyword-only
  bool is_out = false;               // writes into keyword arguments: `out=`
  bool takes_spread = false;         // x:view(2, 3): the last positional is a list of any length
  std::vector<int> result_argument = {};  // result i is argument result_argument[i] itself, or -1
};

// Where each parameter's value lies on the Lua stack; 0: the default. With `spread_from` above 0
// the last positional parameter gathers the numbers from there to the last positional argument.
struct Binding {
  const Overload* overload = nullptr;
  std::vector<int> sources;
  int spread_from = 0;
};

struct KeywordArgument {
  const char* name;  // belongs to the table of keywords
  int index;         // on the stack
};

struct Arguments {
  int num_positional = 0;
  std::vector<KeywordArgument> keywords;
};

// A choice made, by what it was made for: a call site repeats itself.
struct Remembered {
  uint64_t classes;                   // of the arguments in order, the keywords' last
  std::vector<std::string> keywords;  // their names in order
  Binding binding;
};

// Calls of tensors alone need no boxing: the kernel is called as C++ would.
using Unary = c10::TypedOperatorHandle<at::Tensor(const at::Tensor&)>;
using Binary = c10::TypedOperatorHandle<at::Tensor(const at::Tensor&, const at::Tensor&)>;
using BinaryAlpha = c10::TypedOperatorHandle<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>;

}  // namespace

struct Operator {
  std::string name;
  std::vector<Overload> overloads;
  bool is_factory = false;  // makes tensors from no tensor: takes dtype, device, pin_memory
  // A deque: a nested call may add to it while an outer one still reads its own.
  std::deque<Remembered> remembered;
  // What a call of one or two tensors resolves to, where it is of these forms. Set by that call.
  std::optional<Unary> unary;
  std::optional<Binary> binary;
  std::optional<BinaryAlpha> binary_alpha;  // with alpha = 1: add, sub
};

namespace {

// Named dimensions (names, Dimname) are a prototype that PyTorch itself warns about.
bool TakesNames(const c10::OperatorName& name) {
  std::string overload = name.overload_name;
  for (char& c : overload) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return absl::StrContains(overload, "names") || absl::StrContains(overload, "dimname");
}

int FindWrittenArgument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

Overload DescribeOverload(const c10::OperatorHandle& handle) {
  Overload overload{handle};
  for (const c10::Argument& argument : handle.schema().arguments()) {
    overload.parameters.push_back(DescribeParameter(argument));
    overload.num_positional += argument.kwarg_only() ? 0 : 1;
    overload.is_out |= argument.is_out();
  }
  for (const c10::Argument& result : handle.schema().returns()) {
    overload.result_argument.push_back(FindWrittenArgument(handle.schema(), result));
  }
  if (overload.num_positional > 0) {
    const Parameter& last = overload.parameters[overload.num_positional - 1];
    overload.takes_spread = last.kind == ParameterKind::kIntegers && !last.spreads;
  }
  return overload;
}

// The schemas of aten by operator name, in an order that does not change from run to run.
const std::map<std::string, std::vector<c10::OperatorName>>& Index() {
  static const auto* const kIndex = [] {
    auto* index = new std::map<std::string, std::vector<c10::OperatorName>>();
    constexpr char kNamespace[] = "aten::";
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!absl::StartsWith(name.name, kNamespace) || TakesNames(name)) continue;
      if (!c10::Dispatcher::singleton().findSchema(name).has_value()) continue;
      (*index)[name.name.substr(sizeof(kNamespace) - 1)].push_back(name);
    }
    for (auto& [name, overloads] : *index) {
      std::sort(overloads.begin(), overloads.end(), [](const auto& a, const auto& b) {
        return a.overload_name < b.overload_name;
      });
    }
    return index;
  }();
  return *kIndex;
}

std::string SchemaText(const Overload& overload, const std::string& name) {
  std::ostringstream out;
  out << overload.handle.schema();
  const std::string text = out.str();
  return absl::StrCat("torch.", name, text.substr(text.find('(')));
}

// --- Resolution -----------------------------------------------------------------------------------

// A candidate's price, or why it does not fit.
struct Verdict {
  std::optional<std::pair<int, int>> cost;  // conversions, defaults used
  std::string reason;
};

Verdict Reject(std::string reason) { return {std::nullopt, std::move(reason)}; }

std::vector<std::string> ParameterNames(const Overload& overload) {
  std::vector<std::string> names;
  for (const Parameter& p : overload.parameters) names.push_back(p.name);
  return names;
}

// Fills `binding` with the overload's reading of the arguments.
Verdict Bind(lua_State* state, const Overload& overload, const Arguments& arguments, Binding& binding) {
  binding = {&overload, std::vector<int>(overload.parameters.size(), 0), 0};
  const size_t given = arguments.num_positional;
  if (given > overload.num_positional && !overload.takes_spread) {
    return Reject(absl::StrCat("takes at most ", overload.num_positional, " positional arguments"));
  }
  for (size_t i = 0; i < std::min(given, overload.num_positional); ++i) {
    binding.sources[i] = static_cast<int>(i + 1);
  }
  for (const KeywordArgument& keyword : arguments.keywords) {
    size_t i = 0;
    while (i < overload.parameters.size() && overload.parameters[i].name != keyword.name) ++i;
    if (i == overload.parameters.size()) {
      const std::string nearest = Nearest(keyword.name, ParameterNames(overload));
      return Reject(absl::StrCat("has no parameter \"", keyword.name, "\"",
                                 nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
    }
    if (binding.sources[i] != 0) return Reject(absl::StrCat("\"", keyword.name, "\" is given twice"));
    binding.sources[i] = keyword.index;
  }
  Verdict verdict{std::make_pair(0, 0), ""};
  const Parameter* number_as_tensor = nullptr;
  bool any_tensor = false;
  for (size_t i = 0; i < overload.parameters.size(); ++i) {
    const Parameter& parameter = overload.parameters[i];
    const int source = binding.sources[i];
    if (source == 0) {
      // A result to write into must be given; anything else may have a default.
      if (!parameter.default_value.has_value()) {
        return Reject(absl::StrCat("\"", parameter.name, "\" is missing: ", Expected(parameter)));
      }
      ++verdict.cost->second;
      continue;
    }
    const ValueClass value = Classify(state, source);
    // Numbers in a row stand for the list that comes last: x:view(2, 3).
    const bool last = i + 1 == overload.num_positional && source == static_cast<int>(i + 1);
    if (last && overload.takes_spread && value == ValueClass::kWhole) {
      for (int j = source; j <= arguments.num_positional; ++j) {
        if (Classify(state, j) != ValueClass::kWhole) {
          return Reject(absl::StrCat("\"", parameter.name, "\" must be whole numbers, not ", DescribeValue(state, j)));
        }
      }
      binding.spread_from = source;
      verdict.cost->first += 2;
      continue;
    }
    if (last && given > overload.num_positional) {
      return Reject(absl::StrCat("takes at most ", overload.num_positional, " positional arguments"));
    }
    const std::optional<int> cost = ConversionCost(value, parameter);
    if (!cost.has_value()) {
      return Reject(absl::StrCat("\"", parameter.name, "\" must be ", Expected(parameter), ", not ",
                                 DescribeValue(state, source)));
    }
    verdict.cost->first += *cost;
    if (value == ValueClass::kTensor) {
      any_tensor = true;
    } else if (parameter.kind == ParameterKind::kTensor && value != ValueClass::kNil) {
      number_as_tensor = &parameter;
    }
  }
  // A number stands for a tensor beside tensors, as in 2 - x; torch.exp(2) is a mistake.
  if (number_as_tensor != nullptr && !any_tensor) {
    return Reject(absl::StrCat("\"", number_as_tensor->name, "\" must be a tensor, not a number"));
  }
  return verdict;
}

std::string DescribeCall(lua_State* state, const Arguments& arguments) {
  std::string text;
  for (int i = 1; i <= arguments.num_positional; ++i) {
    absl::StrAppend(&text, i > 1 ? ", " : "", DescribeValue(state, i));
  }
  for (const KeywordArgument& keyword : arguments.keywords) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", keyword.name, " = ", DescribeValue(state, keyword.index));
  }
  return text;
}

Binding Resolve(lua_State* state, const Operator& op, const Arguments& arguments) {
  const bool out = std::any_of(op.overloads.begin(), op.overloads.end(), [&](const Overload& overload) {
    return overload.is_out && std::any_of(overload.parameters.begin(), overload.parameters.end(), [&](const Parameter& p) {
             return p.keyword_only && p.written &&
                    std::any_of(arguments.keywords.begin(), arguments.keywords.end(),
                                [&](const KeywordArgument& k) { return p.name == k.name; });
           });
  });
  Binding best;
  std::pair<int, int> best_cost;
  std::string reasons;
  for (const Overload& overload : op.overloads) {
    if (overload.is_out != out) continue;
    Binding binding;
    const Verdict verdict = Bind(state, overload, arguments, binding);
    if (!verdict.cost.has_value()) {
      absl::StrAppend(&reasons, "\n  ", SchemaText(overload, op.name), "\n    ", verdict.reason);
    } else if (best.overload == nullptr || *verdict.cost < best_cost) {
      best = std::move(binding);
      best_cost = *verdict.cost;
    }
  }
  if (best.overload == nullptr) {
    throw Error(absl::StrCat("torch.", op.name, " cannot be called with (", DescribeCall(state, arguments),
                             "); it takes:", reasons));
  }
  return best;
}

// --- Calling --------------------------------------------------------------------------------------

// Four bits for each argument's class, the keywords' last. 0 where there are too many to be remembered.
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

bool SameKeywords(const std::vector<std::string>& names, const std::vector<KeywordArgument>& keywords) {
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
  if (overload.result_argument != std::vector<int>{-1}) return;
  if (overload.handle.schema().returns()[0].type()->kind() != c10::TypeKind::TensorType) return;
  for (size_t i = 0; i < num_tensors; ++i) {
    if (i >= parameters.size() || !IsPlainTensor(parameters[i])) return;
  }
  if (num_tensors == 1 && parameters.size() == 1) op.unary = overload.handle.typed<at::Tensor(const at::Tensor&)>();
  if (num_tensors != 2) return;
  if (parameters.size() == 2) {
    op.binary = overload.handle.typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  } else if (parameters.size() == 3 && parameters[2].name == "alpha") {
    op.binary_alpha = overload.handle.typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>();
  }
}

// The overload for these arguments: remembered, or resolved and remembered. `unremembered` is where
// it is kept when it is not to be.
const Binding& Choose(lua_State* state, Operator& op, const Arguments& arguments, std::optional<Binding>& unremembered) {
  const uint64_t classes = Classes(state, arguments);
  for (const Remembered& remembered : op.remembered) {
    if (remembered.classes == classes && SameKeywords(remembered.keywords, arguments.keywords)) return remembered.binding;
  }
  Binding binding = Resolve(state, op, arguments);
  constexpr size_t kMaxChoices = 256;
  if (classes == 0 || op.remembered.size() == kMaxChoices) return unremembered.emplace(std::move(binding));
  std::vector<std::string> names;
  for (const KeywordArgument& keyword : arguments.keywords) names.emplace_back(keyword.name);
  return op.remembered.emplace_back(Remembered{classes, std::move(names), std::move(binding)}).binding;
}

c10::IValue GatherSpread(lua_State* state, int from, int to) {
  c10::List<int64_t> values;
  for (int i = from; i <= to; ++i) values.push_back(ReadInteger(state, i, "an element"));
  return values;
}

void FillValues(lua_State* state, const Binding& binding, int num_positional, Values& values) {
  const Overload& overload = *binding.overload;
  values.clear();
  values.reserve(overload.parameters.size());
  for (size_t i = 0; i < overload.parameters.size(); ++i) {
    const int source = binding.sources[i];
    if (source == 0) {
      values.push_back(*overload.parameters[i].default_value);
    } else if (source == binding.spread_from) {
      values.push_back(GatherSpread(state, source, num_positional));
    } else {
      values.push_back(Convert(state, source, overload.parameters[i]));
    }
  }
}

bool IsOutOfMemory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         absl::StrContains(error.msg(), "can't allocate memory");
}

void Execute(lua_State* state, const Operator& op, const Binding& binding, int num_positional, Values& values) {
  FillValues(state, binding, num_positional, values);
  try {
    binding.overload->handle.callBoxed(values);
    return;
  } catch (const c10::Error& error) {
    if (!IsOutOfMemory(error)) {
      throw Error(absl::StrCat("torch.", op.name, ": ", error.what_without_backtrace()));
    }
  }
  // Dead tensors may still wait for the collector: free them and try once more.
  lua_gc(state, LUA_GCCOLLECT, 0);
  FillValues(state, binding, num_positional, values);
  try {
    binding.overload->handle.callBoxed(values);
  } catch (const c10::Error& error) {
    throw Error(absl::StrCat("torch.", op.name, ": out of memory, also after freeing what Lua no longer uses (",
                             LiveTensorBytes() >> 20, " MiB are still in use): ", error.what_without_backtrace()));
  }
}

// A vector that keeps its memory between calls; a nested call finds the spare taken and makes its own.
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

int PushResults(lua_State* state, const Binding& binding, const Values& values) {
  lua_checkstack(state, static_cast<int>(values.size()) + 4);
  for (size_t i = 0; i < values.size(); ++i) {
    const int argument = i < binding.overload->result_argument.size() ? binding.overload->result_argument[i] : -1;
    const int source = argument >= 0 ? binding.sources[argument] : 0;
    // x:add_(1) gives back x itself, not another value for the same tensor.
    if (source != 0 && values[i].isTensor()) {
      lua_pushvalue(state, source);
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

// Pushes the values of the keyword table at `index` and lists them. `requires_grad` is no parameter
// of any schema: factories in PyTorch take it beside dtype and device, and so do ours.
std::vector<KeywordArgument> SpreadKeywords(lua_State* state, int index, const Operator& op, bool& requires_grad) {
  std::vector<KeywordArgument> keywords;
  lua_pushnil(state);
  while (lua_next(state, index) != 0) {
    if (lua_type(state, -2) != LUA_TSTRING) {
      throw Error(absl::StrCat("torch.", op.name, ": the table of keyword arguments also holds ", TypeName(state, -2)));
    }
    const char* name = lua_tostring(state, -2);
    if (op.is_factory && std::strcmp(name, "requires_grad") == 0) {
      requires_grad = ReadBoolean(state, -1, "requires_grad");
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
  Execute(state, op, binding, arguments.num_positional, spare.values);
  if (requires_grad) {
    for (c10::IValue& value : spare.values) value.toTensor().set_requires_grad(true);
  }
  return PushResults(state, binding, spare.values);
}

// One or two tensors, to an operator known to take just these: most calls of a training step.
bool CallDirectly(lua_State* state, const Operator& op, int num_arguments) {
  if (num_arguments == 0 || num_arguments > 2) return false;
  const bool is_unary = num_arguments == 1;
  if (is_unary ? !op.unary.has_value() : !op.binary.has_value() && !op.binary_alpha.has_value()) return false;
  const at::Tensor* a = TensorAt(state, 1);
  const at::Tensor* b = is_unary ? a : TensorAt(state, 2);
  if (a == nullptr || b == nullptr) return false;
  at::Tensor result;
  try {
    result = is_unary ? op.unary->call(*a) : op.binary.has_value() ? op.binary->call(*a, *b) : op.binary_alpha->call(*a, *b, 1);
  } catch (const c10::Error& error) {
    if (IsOutOfMemory(error)) return false;  // the general way frees memory and tries again
    throw Error(absl::StrCat("torch.", op.name, ": ", error.what_without_backtrace()));
  }
  PushTensor(state, std::move(result));
  return true;
}

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
    for (const c10::OperatorName& overload : found->second) {
      op->overloads.push_back(DescribeOverload(*c10::Dispatcher::singleton().findSchema(overload)));
      for (const Parameter& parameter : op->overloads.back().parameters) op->is_factory |= parameter.name == "pin_memory";
    }
  }
  return op.get();
}

int CallOperator(lua_State* state, Operator& op) {
  const int num_arguments = lua_gettop(state);
  if (CallDirectly(state, op, num_arguments)) return 1;
  if (num_arguments > 0 && HoldsKeywords(state, num_arguments)) {
    return CallWithKeywords(state, op, num_arguments);
  }
  std::optional<Binding> unremembered;
  const Binding& binding = Choose(state, op, {num_arguments, {}}, unremembered);
  SpareValues spare;
  Execute(state, op, binding, num_arguments, spare.values);
  if (num_arguments <= 2 && num_arguments > 0 && TensorAt(state, 1) != nullptr && TensorAt(state, num_arguments) != nullptr) {
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
  for (const auto& [name, overloads] : Index()) names.push_back(name);
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
