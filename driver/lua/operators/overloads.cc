#include "driver/lua/operators/overloads.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

// The cost of reading a last argument {} as a table of no keywords: reading it as a list is better.
constexpr int kCostOfNoKeywords = 8;
// The cost of reading several numbers as a list: a real list is better.
constexpr int kCostOfSpread = 2;

// A candidate's price, or why it does not fit.
struct Verdict {
  std::optional<std::pair<int, int>> cost;  // conversions, defaults used
  std::string reason;
};

Verdict Reject(std::string reason) { return {std::nullopt, std::move(reason)}; }

Verdict Accept(int conversions) { return {std::make_pair(conversions, 0), ""}; }

int FindWrittenArgument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::string UnknownKeyword(const Overload& overload, const char* keyword) {
  std::vector<std::string> names;
  for (const Parameter& parameter : overload.parameters) names.push_back(parameter.name);
  return absl::StrCat("has no parameter \"", keyword, "\"", DidYouMean(keyword, names));
}

std::string TakesAtMost(const Overload& overload) {
  return absl::StrCat("takes at most ", overload.num_positional, " positional argument",
                      overload.num_positional == 1 ? "" : "s");
}

// Whether the parameter may be left out, and {} is no value of it.
bool MayBeLeftOut(const Parameter& parameter) {
  return parameter.default_value.has_value() &&
         !ConversionCost(ValueClass::kEmptyList, parameter).has_value();
}

// Counts the positional arguments, less nils beyond the last parameter, and a {} that is the last
// argument and can be no more than a table of no keywords.
Verdict CountPositional(lua_State* state, const Overload& overload, const Arguments& arguments,
                        size_t& count) {
  const size_t most = overload.num_positional;
  int conversions = 0;
  count = arguments.num_positional;
  const auto class_of_last = [&] { return Classify(state, static_cast<int>(count)); };
  if (count > 0 && arguments.keywords.empty() && class_of_last() == ValueClass::kEmptyList &&
      (count > most || MayBeLeftOut(overload.parameters[count - 1]))) {
    --count;
    conversions += kCostOfNoKeywords;
  }
  while (count > most && class_of_last() == ValueClass::kNil) --count;
  if (count > most && !overload.takes_spread) {
    return Reject(TakesAtMost(overload));
  }
  return Accept(conversions);
}

// Says where each parameter's value lies.
Verdict FindSources(lua_State* state, const Overload& overload, const Arguments& arguments,
                    size_t& num_positional, Binding& binding) {
  Verdict verdict = CountPositional(state, overload, arguments, num_positional);
  if (!verdict.cost.has_value()) return verdict;
  binding = {&overload, std::vector<int>(overload.parameters.size(), 0), 0, 0};
  for (size_t i = 0; i < std::min(num_positional, overload.num_positional); ++i) {
    binding.sources[i] = static_cast<int>(i + 1);
  }
  for (const KeywordArgument& keyword : arguments.keywords) {
    size_t i = 0;
    while (i < overload.parameters.size() && overload.parameters[i].name != keyword.name) ++i;
    if (i == overload.parameters.size()) return Reject(UnknownKeyword(overload, keyword.name));
    if (binding.sources[i] != 0) {
      return Reject(absl::StrCat("\"", keyword.name, "\" is given twice"));
    }
    binding.sources[i] = keyword.index;
  }
  return verdict;
}

// Whether the table is an array that also has fields: torch.zeros{2, 3, dtype = torch.int64}.
bool MixesFields(lua_State* state, int index) {
  if (lua_type(state, index) != LUA_TTABLE || lua_objlen(state, index) == 0) return false;
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TSTRING) continue;
    lua_pop(state, 2);
    return true;
  }
  return false;
}

std::string Misfit(lua_State* state, const Parameter& parameter, int source) {
  if (parameter.kind == ParameterKind::kGenerator || parameter.kind == ParameterKind::kOther) {
    return absl::StrCat("\"", parameter.name, "\" cannot be given from Lua");
  }
  return absl::StrCat(
      "\"", parameter.name, "\" must be ", Expected(parameter), ", not ",
      DescribeValue(state, source),
      MixesFields(state, source) ? "; keyword arguments go in a table of their own" : "");
}

// Numbers in a row, from `from` to `to`, as the list that `parameter` takes.
Verdict Spread(lua_State* state, const Parameter& parameter, int from, int to, Binding& binding) {
  for (int i = from; i <= to; ++i) {
    if (IsWhole(Classify(state, i))) continue;
    return Reject(absl::StrCat("\"", parameter.name, "\" must be whole numbers, not ",
                               DescribeValue(state, i)));
  }
  binding.spread_from = from;
  binding.spread_to = to;
  return Accept(kCostOfSpread);
}

// Fills `binding` with the overload's reading of the arguments.
Verdict Bind(lua_State* state, const Overload& overload, const Arguments& arguments,
             Binding& binding) {
  size_t num_positional = 0;
  Verdict verdict = FindSources(state, overload, arguments, num_positional, binding);
  if (!verdict.cost.has_value()) return verdict;
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
    const bool is_last = i + 1 == overload.num_positional && source == static_cast<int>(i + 1);
    const bool several = num_positional > overload.num_positional;
    if (is_last && several && !IsWhole(value)) return Reject(TakesAtMost(overload));
    if (is_last && overload.takes_spread && IsWhole(value)) {
      Verdict spread = Spread(state, parameter, source, static_cast<int>(num_positional), binding);
      if (!spread.cost.has_value()) return spread;
      verdict.cost->first += spread.cost->first;
      continue;
    }
    const std::optional<int> cost = ConversionCost(value, parameter);
    if (!cost.has_value()) return Reject(Misfit(state, parameter, source));
    verdict.cost->first += *cost;
    if (value == ValueClass::kTensor) {
      any_tensor = true;
    } else if (parameter.kind == ParameterKind::kTensor && value != ValueClass::kNil) {
      number_as_tensor = &parameter;
    }
  }
  // A number stands for a tensor if there are other tensors, as in 2 - x; torch.exp(2) is a
  // mistake.
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
    absl::StrAppend(&text, text.empty() ? "" : ", ", keyword.name, " = ",
                    DescribeValue(state, keyword.index));
  }
  return text;
}

// Whether the keywords name a result that the overload writes into.
bool NamesResult(const Overload& overload, const Arguments& arguments) {
  const auto names = [&](const Parameter& parameter) {
    return parameter.keyword_only && parameter.written &&
           std::any_of(arguments.keywords.begin(), arguments.keywords.end(),
                       [&](const KeywordArgument& k) { return parameter.name == k.name; });
  };
  return overload.is_out &&
         std::any_of(overload.parameters.begin(), overload.parameters.end(), names);
}

}  // namespace

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
    overload.takes_spread = last.kind == ParameterKind::kIntegers && last.list_size == 0;
  }
  return overload;
}

std::string SchemaText(const Overload& overload, const std::string& name) {
  std::ostringstream out;
  out << overload.handle.schema();
  const std::string text = out.str();
  return absl::StrCat("torch.", name, text.substr(text.find('(')));
}

Binding Resolve(lua_State* state, const std::string& name, const std::vector<Overload>& overloads,
                const Arguments& arguments) {
  const bool out = std::any_of(overloads.begin(), overloads.end(), [&](const Overload& overload) {
    return NamesResult(overload, arguments);
  });
  Binding best;
  std::pair<int, int> best_cost;
  std::string reasons;
  for (const Overload& overload : overloads) {
    if (overload.is_out != out) continue;
    Binding binding;
    const Verdict verdict = Bind(state, overload, arguments, binding);
    if (!verdict.cost.has_value()) {
      absl::StrAppend(&reasons, "\n  ", SchemaText(overload, name), "\n    ", verdict.reason);
    } else if (best.overload == nullptr || *verdict.cost < best_cost) {
      best = std::move(binding);
      best_cost = *verdict.cost;
    }
  }
  if (best.overload == nullptr) {
    throw Error(absl::StrCat("torch.", name, " cannot be called with (",
                             DescribeCall(state, arguments), "); it takes:", reasons));
  }
  return best;
}

}  // namespace lockstep::lua
