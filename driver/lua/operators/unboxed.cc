#include "driver/lua/operators/unboxed.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/DimVector.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/jit_type.h"
#include "absl/strings/match.h"
#include "c10/core/SymIntArrayRef.h"
#include "c10/util/OptionalArrayRef.h"
#include "driver/lua/operators/arguments.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

// Where one argument lies on the Lua stack. Its class fits the parameter (Resolve).
struct Given {
  lua_State* state;
  const Binding& binding;
  size_t i;  // of the parameter

  int source() const { return binding.sources[i]; }
  const Parameter& parameter() const { return binding.overload->parameters[i]; }
  bool is_absent() const { return source() == 0 || lua_isnoneornil(state, source()); }
};

bool HasNoDefault(const Parameter& parameter) {
  return !parameter.default_value.has_value() || parameter.default_value->isNone();
}

// Argument<T> reads an argument of C++ type T. Fits returns whether a parameter has that type.
template <typename T>
class Argument;

template <>
class Argument<const at::Tensor&> {
 public:
  static bool Fits(const Parameter& parameter, const c10::Type&) {
    return parameter.kind == ParameterKind::kTensor && !parameter.optional && !parameter.written;
  }
  explicit Argument(const Given& given) : tensor_(*TensorAt(given.state, given.source())) {}
  const at::Tensor& get() const { return tensor_; }

 private:
  const at::Tensor& tensor_;
};

template <>
class Argument<bool> {
 public:
  static bool Fits(const Parameter& parameter, const c10::Type&) {
    return parameter.kind == ParameterKind::kBoolean && !parameter.optional;
  }
  explicit Argument(const Given& given)
      : value_(given.is_absent() ? given.parameter().default_value->toBool()
                                 : lua_toboolean(given.state, given.source()) != 0) {}
  bool get() const { return value_; }

 private:
  bool value_;
};

template <>
class Argument<std::optional<at::ScalarType>> {
 public:
  static bool Fits(const Parameter& parameter, const c10::Type&) {
    return parameter.kind == ParameterKind::kDtype && parameter.optional && HasNoDefault(parameter);
  }
  explicit Argument(const Given& given) {
    at::ScalarType dtype;
    if (!given.is_absent() && DtypeAt(given.state, given.source(), &dtype)) value_ = dtype;
  }
  std::optional<at::ScalarType> get() const { return value_; }

 private:
  std::optional<at::ScalarType> value_;
};

at::DimVector ReadList(const Given& given) {
  lua_State* const state = given.state;
  const int source = given.source();
  at::DimVector values;
  if (source == given.binding.spread_from) {
    for (int i = source; i <= given.binding.spread_to; ++i)
      values.push_back(static_cast<int64_t>(lua_tonumber(state, i)));
  } else if (lua_type(state, source) == LUA_TNUMBER) {
    values.resize(given.parameter().list_size, static_cast<int64_t>(lua_tonumber(state, source)));
  } else {
    const int size = static_cast<int>(lua_objlen(state, source));
    for (int i = 1; i <= size; ++i) {
      lua_rawgeti(state, source, i);
      values.push_back(static_cast<int64_t>(lua_tonumber(state, -1)));
      lua_pop(state, 1);
    }
  }
  return values;
}

bool IsListOf(c10::TypeKind element, const Parameter& parameter, const c10::Type& type) {
  return parameter.kind == ParameterKind::kIntegers && HasNoDefault(parameter) &&
         type.castRaw<c10::ListType>()->getElementType()->kind() == element;
}

template <>
class Argument<at::OptionalIntArrayRef> {
 public:
  static bool Fits(const Parameter& parameter, const c10::Type& type) {
    return parameter.optional && IsListOf(c10::TypeKind::IntType, parameter, type);
  }
  explicit Argument(const Given& given) {
    if (!given.is_absent()) values_ = ReadList(given);
  }
  at::OptionalIntArrayRef get() const {
    return values_.has_value() ? at::OptionalIntArrayRef(*values_) : std::nullopt;
  }

 private:
  std::optional<at::DimVector> values_;
};

template <>
class Argument<c10::SymIntArrayRef> {
 public:
  static bool Fits(const Parameter& parameter, const c10::Type& type) {
    return !parameter.optional && IsListOf(c10::TypeKind::SymIntType, parameter, type);
  }
  explicit Argument(const Given& given) : values_(ReadList(given)) {}
  c10::SymIntArrayRef get() const { return c10::fromIntArrayRefSlow(values_); }

 private:
  at::DimVector values_;
};

template <typename... Arguments, size_t... i>
bool Fit(const Overload& overload, std::index_sequence<i...>) {
  if (overload.parameters.size() != sizeof...(Arguments)) return false;
  const auto type = [&](size_t j) -> const c10::Type& {
    const c10::Type& whole = *overload.handle.schema().arguments()[j].real_type();
    const auto* optional = whole.castRaw<c10::OptionalType>();
    return optional == nullptr ? whole : *optional->getElementType();
  };
  return (Argument<Arguments>::Fits(overload.parameters[i], type(i)) && ...);
}

template <typename... Arguments, size_t... i>
at::Tensor Call(const c10::TypedOperatorHandle<at::Tensor(Arguments...)>& handle, lua_State* state,
                const Binding& binding, std::index_sequence<i...>) {
  return handle.call(Argument<Arguments>(Given{state, binding, i}).get()...);
}

// Sets `call` if the overload takes these arguments.
template <typename... Arguments>
void Try(const Overload& overload, UnboxedCall& call) {
  constexpr std::index_sequence_for<Arguments...> kIndices;
  if (!Fit<Arguments...>(overload, kIndices)) return;
  call = [handle = overload.handle.typed<at::Tensor(Arguments...)>(), kIndices](
             lua_State* state, const Binding& binding) {
    return Call(handle, state, binding, kIndices);
  };
}

}  // namespace

UnboxedCall FindUnboxedCall(const Overload& overload) {
  const c10::FunctionSchema& schema = overload.handle.schema();
  UnboxedCall call;
  // Other libraries may take their arguments by other C++ types.
  if (!absl::StartsWith(schema.name(), "aten::")) return call;
  if (overload.result_argument != std::vector<int>{-1}) return call;
  if (schema.returns()[0].type()->kind() != c10::TypeKind::TensorType) return call;
  // sum, mean
  Try<const at::Tensor&, at::OptionalIntArrayRef, bool, std::optional<at::ScalarType>>(overload,
                                                                                       call);
  // view, reshape
  Try<const at::Tensor&, c10::SymIntArrayRef>(overload, call);
  return call;
}

}  // namespace lockstep::lua
