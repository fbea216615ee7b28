#include "driver/lua/bind/torch/tensor_methods.h"

#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/graph/recording.h"
#include "driver/lua/bind/torch/nested.h"
#include "driver/lua/operators/names.h"
#include "driver/lua/operators/operators.h"
#include "driver/lua/tensor/autograd.h"
#include "driver/lua/tensor/format.h"
#include "driver/lua/tensor/graph.h"
#include "driver/lua/tensor/hooks.h"
#include "driver/lua/tensor/indexing.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

constexpr char kTensorMetatable[] = "lockstep.tensor";
constexpr char kShapeMetatable[] = "lockstep.shape";

// --- Fields --------------------------------------------------------------------------------------

int ShapeToString(lua_State* state) {
  return PushString(state,
                    absl::StrCat("{", absl::StrJoin(ReadIntegers(state, 1, "shape"), ", "), "}"));
}

int ShapesEqual(lua_State* state) {
  return PushBoolean(state, ReadIntegers(state, 1, "shape") == ReadIntegers(state, 2, "shape"));
}

// An array of sizes that prints itself and equals another of the same sizes.
int PushShape(lua_State* state, const at::Tensor& tensor) {
  PushIntegers(state, tensor.sizes().vec());
  if (luaL_newmetatable(state, kShapeMetatable) != 0) {
    SetFunctions(state, {{"__tostring", ShapeToString}, {"__eq", ShapesEqual}});
  }
  lua_setmetatable(state, -2);
  return 1;
}

struct Field {
  const char* name;
  int (*push)(lua_State* state, const at::Tensor& tensor);
};

constexpr Field kFields[] = {
    {"shape", PushShape},
    {"dtype",
     [](lua_State* state, const at::Tensor& x) { return PushDtype(state, x.scalar_type()); }},
    {"device",
     [](lua_State* state, const at::Tensor& x) { return PushString(state, x.device().str()); }},
    {"grad",
     [](lua_State* state, const at::Tensor& x) {
       driver::Recording::NoteGradRead(x);
       return PushTensor(state, x.grad());
     }},
    {"requires_grad",
     [](lua_State* state, const at::Tensor& x) { return PushBoolean(state, x.requires_grad()); }},
    {"is_leaf",
     [](lua_State* state, const at::Tensor& x) { return PushBoolean(state, x.is_leaf()); }},
    {"ndim", [](lua_State* state, const at::Tensor& x) { return PushInteger(state, x.dim()); }},
    {"T", [](lua_State* state, const at::Tensor& x) { return PushTensor(state, x.t()); }},
};

// --- Methods that are no operators ---------------------------------------------------------------

int Size(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "size: x");
  if (lua_isnoneornil(state, 2)) return PushShape(state, tensor);
  const int64_t dim = ReadInteger(state, 2, "size: dim");
  return PushInteger(state, PrefixErrors("size", [&] { return tensor.size(dim); }));
}

int Dim(lua_State* state) { return PushInteger(state, ReadTensor(state, 1, "dim: x").dim()); }

int Numel(lua_State* state) { return PushInteger(state, ReadTensor(state, 1, "numel: x").numel()); }

int ElementSize(lua_State* state) {
  return PushInteger(state,
                     static_cast<int64_t>(ReadTensor(state, 1, "element_size: x").element_size()));
}

int Stride(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "stride: x");
  if (lua_isnoneornil(state, 2)) return PushIntegers(state, tensor.strides().vec());
  const int64_t dim = ReadInteger(state, 2, "stride: dim");
  return PushInteger(state, PrefixErrors("stride", [&] { return tensor.stride(dim); }));
}

int IsContiguous(lua_State* state) {
  return PushBoolean(state, ReadTensor(state, 1, "is_contiguous: x").is_contiguous());
}

int Item(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "item: x");
  CheckNotRecording("item");
  if (tensor.numel() != 1) {
    throw Error(absl::StrCat("item: x must have one element, not ", tensor.numel(), " (",
                             Describe(tensor), "); reduce it first, or use x:totable()"));
  }
  return PushNested(state, tensor.reshape({}));
}

int ToTable(lua_State* state) {
  CheckNotRecording("totable");
  return PushNested(state, ReadTensor(state, 1, "totable: x"));
}

// Pushes `tensor`, or the value at index 1 where it is that very tensor.
int PushSameOr(lua_State* state, const at::Tensor& tensor) {
  if (TensorAt(state, 1) != nullptr && TensorAt(state, 1)->is_same(tensor)) {
    lua_pushvalue(state, 1);
  } else {
    PushTensor(state, tensor);
  }
  return 1;
}

// x:to("cuda:0"), x:to(torch.bfloat16), x:to(other), x:to{device =, dtype =, non_blocking =, copy
// =}, and these together.
int To(lua_State* state) {
  const at::Tensor tensor = ReadTensor(state, 1, "to: x");
  at::Device device = tensor.device();
  at::ScalarType dtype = tensor.scalar_type();
  bool non_blocking = false;
  bool copy = false;
  const int num_arguments = lua_gettop(state);
  for (int i = 2; i <= num_arguments; ++i) {
    if (const at::Tensor* other = TensorAt(state, i)) {
      device = other->device();
      dtype = other->scalar_type();
    } else if (lua_type(state, i) == LUA_TSTRING) {
      device = ReadDevice(state, i, "to: device");
    } else if (lua_type(state, i) == LUA_TTABLE && i == num_arguments) {
      const OptionTable options(state, i, "to", {"device", "dtype", "non_blocking", "copy"});
      device = options.Find("device", ReadDevice).value_or(device);
      dtype = options.Find("dtype", ReadDtype).value_or(dtype);
      non_blocking = options.Boolean("non_blocking", false);
      copy = options.Boolean("copy", false);
    } else if (!DtypeAt(state, i, &dtype)) {
      ThrowTypeError(state, i, "to: the argument",
                     "a device, a dtype, a tensor or a table of options");
    }
  }
  return PushSameOr(state, tensor.to(device, dtype, non_blocking, copy));
}

int Cpu(lua_State* state) { return PushSameOr(state, ReadTensor(state, 1, "cpu: x").to(at::kCPU)); }

int Cuda(lua_State* state) {
  return PushSameOr(state,
                    ReadTensor(state, 1, "cuda: x").to(ParseDevice("cuda", "cuda: the device")));
}

template <at::ScalarType dtype>
int Cast(lua_State* state) {
  return PushSameOr(state, ReadTensor(state, 1, "cast: x").to(dtype));
}

constexpr Function kMethods[] = {
    {"size", Size},
    {"dim", Dim},
    {"numel", Numel},
    {"element_size", ElementSize},
    {"stride", Stride},
    {"is_contiguous", IsContiguous},
    {"item", Item},
    {"totable", ToTable},
    {"to", To},
    {"cpu", Cpu},
    {"cuda", Cuda},
    {"float", Cast<at::kFloat>},
    {"double", Cast<at::kDouble>},
    {"half", Cast<at::kHalf>},
    {"bfloat16", Cast<at::kBFloat16>},
    {"byte", Cast<at::kByte>},
    {"char", Cast<at::kChar>},
    {"short", Cast<at::kShort>},
    {"int", Cast<at::kInt>},
    {"long", Cast<at::kLong>},
    {"bool", Cast<at::kBool>},
    {"backward", Backward},
    {"register_hook", RegisterHook},
};

// --- Metamethods ---------------------------------------------------------------------------------

std::string UnknownField(const std::string& name) {
  std::vector<std::string> known = OperatorNames();
  for (const Function& method : kMethods) known.emplace_back(method.name);
  for (const Field& field : kFields) known.emplace_back(field.name);
  return absl::StrCat("a tensor has no field or operator \"", name, "\"", NameHint(name, known));
}

// x[key]. LuaJIT compiles the look-up of a method, and does not leave compiled code for it. The
// tail call leaves no frame of this function in an error's traceback.
constexpr char kIndex[] = R"lua(
local methods, get_other = ...
return function(x, key)
  local method = methods[key]
  if method then return method end
  return get_other(x, key)
end)lua";

// x[key] where it is not a method that was asked for before. Upvalue 1: methods by name, filled as
// they are asked for.
int GetIndex(lua_State* state) {
  if (lua_type(state, 2) != LUA_TSTRING || std::strcmp(lua_tostring(state, 2), "...") == 0) {
    return PushIndexed(state, ReadTensor(state, 1, "x"), 2);
  }
  const std::string name = lua_tostring(state, 2);
  for (const Field& field : kFields) {
    if (name != field.name) continue;
    return field.push(state, ReadTensor(state, 1, "x"));
  }
  Operator* op = FindOperator(name);
  if (op == nullptr) throw Error(UnknownField(name));
  PushOperator(state, *op);
  lua_pushvalue(state, 2);
  lua_pushvalue(state, -2);
  lua_rawset(state, lua_upvalueindex(1));
  return 1;
}

// x.grad = value. backward() adds to it: what it could not add to is refused here.
void SetGrad(lua_State* state, at::Tensor& tensor) {
  driver::Recording::NoteGradReplaced(tensor);
  if (lua_isnil(state, 3)) {
    tensor.mutable_grad() = at::Tensor();
    return;
  }
  const at::Tensor& grad = ReadTensor(state, 3, "x.grad");
  if (grad.sizes() != tensor.sizes() || grad.scalar_type() != tensor.scalar_type() ||
      grad.device() != tensor.device()) {
    throw Error(
        absl::StrCat("x.grad must be as x is, ", Describe(tensor), ", not ", Describe(grad)));
  }
  tensor.mutable_grad() = grad;
}

// x[key] = value.
int SetIndex(lua_State* state) {
  at::Tensor tensor = ReadTensor(state, 1, "x");
  const std::string name = lua_type(state, 2) == LUA_TSTRING ? lua_tostring(state, 2) : "";
  if (name == "grad") {
    SetGrad(state, tensor);
  } else if (name == "requires_grad") {
    const bool value = ReadBoolean(state, 3, "x.requires_grad");
    PrefixErrors("x.requires_grad", [&] { tensor.set_requires_grad(value); });
  } else if (!name.empty() && name != "...") {
    throw Error(absl::StrCat("the field \"", name,
                             "\" of a tensor cannot be set; only grad and requires_grad can"));
  } else {
    AssignIndexed(state, tensor, 2, 3);
  }
  return 0;
}

int Negate(lua_State* state) {
  static thread_local Operator& neg = *FindOperator("neg");
  lua_settop(state, 1);  // Lua passes the operand of a unary operator twice
  return CallOperator(state, neg);
}

int Length(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "#x: x");
  if (tensor.dim() == 0) throw Error("#x: the tensor has no dimensions, and so no length");
  return PushInteger(state, tensor.size(0));
}

// One tensor: the same C++ object, whichever value names it.
int Equal(lua_State* state) {
  const at::Tensor* a = TensorAt(state, 1);
  const at::Tensor* b = TensorAt(state, 2);
  return PushBoolean(state, a != nullptr && b != nullptr && a->is_same(*b));
}

int Compare(lua_State*) {
  throw Error("tensors are compared element by element: use a:lt(b), a:le(b), a:gt(b) or a:ge(b)");
}

int ToString(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "tostring: x");
  CheckNotRecording("tostring");
  return PushString(state, FormatTensor(tensor));
}

}  // namespace

void RegisterTensorMethods(lua_State* state) {
  luaL_getmetatable(state, kTensorMetatable);

  if (luaL_loadbuffer(state, kIndex, sizeof(kIndex) - 1, "@lockstep/tensor.lua") != 0) {
    throw Error(lua_tostring(state, -1));
  }
  lua_newtable(state);
  SetFunctions(state, kMethods);
  lua_pushvalue(state, -1);
  lua_pushcclosure(state, GetIndex, 1);
  Call(state, 2, 1);
  lua_setfield(state, -2, "__index");

  SetFunctions(state, {{"__newindex", SetIndex},
                       {"__unm", Negate},
                       {"__len", Length},
                       {"__eq", Equal},
                       {"__lt", Compare},
                       {"__le", Compare},
                       {"__tostring", ToString}});
  const std::pair<const char*, const char*> kArithmetic[] = {
      {"__add", "add"}, {"__sub", "sub"},       {"__mul", "mul"},
      {"__div", "div"}, {"__mod", "remainder"}, {"__pow", "pow"}};
  for (const auto& [metamethod, name] : kArithmetic) {
    PushOperator(state, *FindOperator(name));
    lua_setfield(state, -2, metamethod);
  }
  lua_pop(state, 1);
}

int NewTensor(lua_State* state) {
  CheckNotRecording("torch.tensor");  // it copies from the host, once for all replays
  const OptionTable options(state, 2, "torch.tensor", {"dtype", "device", "requires_grad"});
  const std::optional<at::ScalarType> dtype = options.Find("dtype", ReadDtype);
  at::Tensor tensor = TensorAt(state, 1) != nullptr ? TensorAt(state, 1)->detach().clone()
                                                    : ReadNested(state, 1, dtype);
  if (dtype.has_value()) tensor = tensor.to(*dtype);
  if (const auto device = options.Find("device", ReadDevice)) tensor = tensor.to(*device);
  const bool requires_grad = options.Boolean("requires_grad", false);
  PrefixErrors("torch.tensor", [&] { tensor.set_requires_grad(requires_grad); });
  return PushTensor(state, tensor);
}

std::vector<std::string> ExtraMethodNames() {
  std::vector<std::string> names;
  for (const Function& method : kMethods) names.emplace_back(method.name);
  return names;
}

std::vector<std::string> FieldNames() {
  std::vector<std::string> names;
  for (const Field& field : kFields) names.emplace_back(field.name);
  return names;
}

}  // namespace lockstep::lua
