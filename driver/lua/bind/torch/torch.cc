#include "driver/lua/bind/torch/torch.h"

#include <cstring>
#include <memory>
#include <string>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/core/Generator.h"
#include "absl/strings/str_cat.h"
#include "base/torch/replay.h"
#include "c10/core/DefaultDtype.h"
#include "driver/lua/bind/torch/settings.h"
#include "driver/lua/bind/torch/tensor_methods.h"
#include "driver/lua/operators/names.h"
#include "driver/lua/operators/operators.h"
#include "driver/lua/tensor/autocast.h"
#include "driver/lua/tensor/autograd.h"
#include "driver/lua/tensor/cuda.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/math_random.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

using GeneratorPointer = std::unique_ptr<base::OtherGenerator>;
template <>
inline constexpr const char* kObjectName<GeneratorPointer> = "generator of math.random";

namespace {

// Lets functions that run again in backward draw the same numbers from math.random, as from
// libtorch's generators.
void ReplayMathRandom(lua_State* state) {
  void* const random = PushMathRandomState(state);
  if (random == nullptr) return;
  lua_setfield(state, LUA_REGISTRYINDEX, "lockstep.math_random");  // keeps the memory
  RegisterObject<GeneratorPointer>(state, {});
  PushObject(
      state,
      std::make_unique<base::OtherGenerator>(
          [random] { return std::string(static_cast<const char*>(random), kMathRandomBytes); },
          [random](const std::string& bytes) { std::memcpy(random, bytes.data(), bytes.size()); }));
  lua_setfield(state, LUA_REGISTRYINDEX, "lockstep.math_random_generator");
}

int IsTensor(lua_State* state) { return PushBoolean(state, TensorAt(state, 1) != nullptr); }

// torch.full(size, value, {dtype=}): as ATen's, but the dtype never depends on the value. A Lua
// number does not say whether 1 is an integer, so without dtype it is the default dtype.
int Full(lua_State* state) {
  const bool has_options = lua_type(state, 3) == LUA_TTABLE;
  const auto holds = [&](const char* key) {
    lua_getfield(state, 3, key);
    const bool held = !lua_isnil(state, -1);
    lua_pop(state, 1);
    return held;
  };
  const bool tells_dtype = has_options && (holds("dtype") || holds("out"));
  if (lua_type(state, 2) == LUA_TNUMBER && !tells_dtype &&
      (has_options || lua_isnoneornil(state, 3))) {
    lua_settop(state, 3);
    // A copy: the caller's table stays as it is.
    lua_newtable(state);
    if (has_options) {
      for (lua_pushnil(state); lua_next(state, 3) != 0; lua_pop(state, 1)) {
        lua_pushvalue(state, -2);
        lua_pushvalue(state, -2);
        lua_rawset(state, 4);
      }
    }
    PushDtype(state, c10::get_default_dtype_as_scalartype());
    lua_setfield(state, 4, "dtype");
    lua_replace(state, 3);
  }
  return CallOperator(state, *FindOperator("full"));
}

int ManualSeed(lua_State* state) {
  CheckRandomAllowed("manual_seed");
  at::manual_seed(static_cast<uint64_t>(ReadInteger(state, 1, "torch.manual_seed: seed")));
  return 0;
}

at::Generator GeneratorOf(lua_State* state, int index) {
  const at::Device device =
      lua_isnoneornil(state, index) ? at::kCPU : ReadDevice(state, index, "device");
  return at::globalContext().defaultGenerator(device);
}

int GetRngState(lua_State* state) {
  const at::Generator generator = GeneratorOf(state, 1);
  return PushTensor(state, generator.get_state());
}

int SetRngState(lua_State* state) {
  CheckRandomAllowed("set_rng_state");
  at::Generator generator = GeneratorOf(state, 2);
  generator.set_state(ReadTensor(state, 1, "torch.set_rng_state: state"));
  return 0;
}

int GetNumThreads(lua_State* state) { return PushInteger(state, at::get_num_threads()); }

int SetNumThreads(lua_State* state) {
  const int64_t threads = ReadInteger(state, 1, "torch.set_num_threads: n");
  if (threads < 1)
    throw Error(absl::StrCat("torch.set_num_threads: n must be at least 1, not ", threads));
  at::set_num_threads(static_cast<int>(threads));
  return 0;
}

int GetDefaultDtype(lua_State* state) {
  return PushDtype(state, c10::get_default_dtype_as_scalartype());
}

int SetDefaultDtype(lua_State* state) {
  const at::ScalarType dtype = ReadDtype(state, 1, "torch.set_default_dtype: dtype");
  if (!at::isFloatingType(dtype))
    throw Error("torch.set_default_dtype: the dtype must be a floating-point one");
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  return 0;
}

constexpr Function kFunctions[] = {
    {"tensor", NewTensor},
    {"is_tensor", IsTensor},
    {"full", Full},
    {"autocast", Autocast},
    {"grad", Grad},
    {"no_grad", NoGrad},
    {"inference_mode", InferenceMode},
    {"enable_grad", EnableGrad},
    {"is_grad_enabled", IsGradEnabled},
    {"manual_seed", ManualSeed},
    {"get_rng_state", GetRngState},
    {"set_rng_state", SetRngState},
    {"get_num_threads", GetNumThreads},
    {"set_num_threads", SetNumThreads},
    {"get_default_dtype", GetDefaultDtype},
    {"set_default_dtype", SetDefaultDtype},
    {"set_float32_matmul_precision", SetFloat32MatmulPrecision},
    {"get_float32_matmul_precision", GetFloat32MatmulPrecision},
    {"use_deterministic_algorithms", UseDeterministicAlgorithms},
    {"are_deterministic_algorithms_enabled", AreDeterministicAlgorithmsEnabled},
};

// Other names of some dtypes in PyTorch.
constexpr NamedDtype kDtypeAliases[] = {
    {"float", at::kFloat}, {"double", at::kDouble}, {"half", at::kHalf},
    {"short", at::kShort}, {"int", at::kInt},       {"long", at::kLong},
};

std::string UnknownName(const std::string& name) {
  std::vector<std::string> known = OperatorNames();
  for (const Function& function : kFunctions) known.emplace_back(function.name);
  for (const NamedDtype& named : NamedDtypes()) known.emplace_back(named.name);
  return absl::StrCat("torch has no operator \"", name, "\"", NameHint(name, known));
}

// table[name], where the table does not hold it yet. The upvalue, if any, is what comes before the
// name: "ops.lockstep." in torch.ops.lockstep.
int FindByName(lua_State* state) {
  const char* before = lua_tostring(state, lua_upvalueindex(1));
  const std::string name =
      absl::StrCat(before == nullptr ? "" : before, ReadString(state, 2, "torch: the name"));
  Operator* op = FindOperator(name);
  if (op == nullptr) throw Error(UnknownName(name));
  PushOperator(state, *op);
  lua_pushvalue(state, 2);
  lua_pushvalue(state, -2);
  lua_rawset(state, 1);
  return 1;
}

// torch.ops[library]: a table that finds the operators of a library other than ATen, as in PyTorch.
int FindLibrary(lua_State* state) {
  const std::string library = ReadString(state, 2, "torch.ops: the library");
  lua_newtable(state);
  lua_newtable(state);
  lua_pushstring(state, absl::StrCat("ops.", library, ".").c_str());
  lua_pushcclosure(state, FindByName, 1);
  lua_setfield(state, -2, "__index");
  lua_setmetatable(state, -2);
  lua_pushvalue(state, 2);
  lua_pushvalue(state, -2);
  lua_rawset(state, 1);
  return 1;
}

}  // namespace

int OpenTorch(lua_State* state) {
  RegisterTensor(state);
  RegisterTensorMethods(state);
  ReplayMathRandom(state);

  lua_newtable(state);
  SetFunctions(state, kFunctions);
  for (const NamedDtype& named : NamedDtypes()) {
    PushDtype(state, named.dtype);
    lua_setfield(state, -2, named.name);
  }
  for (const NamedDtype& alias : kDtypeAliases) {
    PushDtype(state, alias.dtype);
    lua_setfield(state, -2, alias.name);
  }
  PushCuda(state);
  lua_setfield(state, -2, "cuda");

  lua_newtable(state);
  lua_newtable(state);
  SetFunctions(state, {{"__index", FindLibrary}});
  lua_setmetatable(state, -2);
  lua_setfield(state, -2, "ops");

  lua_newtable(state);
  SetFunctions(state, {{"__index", FindByName}});
  lua_setmetatable(state, -2);
  return 1;
}

}  // namespace lockstep::lua
