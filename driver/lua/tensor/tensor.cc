#include "driver/lua/tensor/tensor.h"

#include <new>
#include <optional>
#include <utility>

#include "ATen/Context.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "driver/lua/tensor/hooks.h"
#include "driver/lua/tensor/pressure.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/lua/vm/wording.h"
#include "torch/csrc/autograd/variable.h"

namespace lockstep::lua {
namespace {

constexpr char kTensorMetatable[] = "lockstep.tensor";
constexpr char kDtypeMetatable[] = "lockstep.dtype";
constexpr char kDtypes[] = "lockstep.dtypes";

// Tags at the start of a userdata tell ours from others' faster than comparing metatables does.
constexpr uint32_t kTensorTag = 0x65742e4c;
constexpr uint32_t kDtypeTag = 0x642e6b63;

// The collector does work for each byte that Lua allocates, so the fields leave no gaps.
struct TensorBox {
  uint32_t tag;
  bool has_unrooted_hooks;  // see hooks.h
  HeldBytes held;
  at::Tensor tensor;
  // This thread's values in the order that they were pushed, see PrefetchOlder.
  TensorBox* older = nullptr;
  TensorBox* newer = nullptr;
};

struct DtypeBox {
  uint32_t tag;
  at::ScalarType dtype;
};

template <typename Box>
Box* BoxAt(lua_State* state, int index, uint32_t tag) {
  Box* box = static_cast<Box*>(lua_touserdata(state, index));
  // Light userdata has the size 0 and no tag: it is not ours.
  if (box == nullptr || lua_objlen(state, index) != sizeof(Box)) return nullptr;
  return box->tag == tag ? box : nullptr;
}

// Memory: see pressure.h.

// Where the registry of this thread's state keeps the tensors' metatable: by number, which is much
// faster to look up than a name.
thread_local int tensor_metatable = LUA_NOREF;

// The value that this thread pushed last.
thread_local TensorBox* newest = nullptr;

void Link(TensorBox* box) {
  box->older = newest;
  if (newest != nullptr) newest->newer = box;
  newest = box;
}

void Unlink(const TensorBox* box) {
  (box->newer == nullptr ? newest : box->newer->older) = box->older;
  if (box->older != nullptr) box->older->newer = box->newer;
}

template <size_t num_bytes>
void PrefetchBytes(const void* address) {
  constexpr size_t kCacheLine = 64;
  for (size_t i = 0; i < num_bytes; i += kCacheLine)
    __builtin_prefetch(static_cast<const char*>(address) + i, /*for writing*/ 1);
}

const torch::autograd::AutogradMeta* AutogradOf(const TensorBox* box) {
  return static_cast<const torch::autograd::AutogradMeta*>(
      box->tensor.unsafeGetTensorImpl()->autograd_meta());
}

// Returns nullptr if the tensor has none. Never throws, because a finaliser calls it.
c10::StorageImpl* StorageOf(const TensorBox* box) {
  const c10::TensorImpl* tensor = box->tensor.unsafeGetTensorImpl();
  return tensor->has_storage() ? tensor->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// Loads the tensors that are probably freed next into the cache, while this one is freed. The
// collector frees dead tensors from the newest to the oldest, thousands of operators after their
// last use. By then no cache holds their parts. A part's address lies in the part before it, so
// each call loads one part of each: the third tensor's first part, and the first one's last.
void PrefetchOlder(const TensorBox* box) {
  const TensorBox* const first = box->older;
  const TensorBox* const second = first == nullptr ? nullptr : first->older;
  const TensorBox* const third = second == nullptr ? nullptr : second->older;
  if (third == nullptr) return;
  if (third->older != nullptr) PrefetchBytes<sizeof(TensorBox)>(third->older);
  PrefetchBytes<sizeof(c10::TensorImpl)>(third->tensor.unsafeGetTensorImpl());

  if (const auto* storage = StorageOf(second)) PrefetchBytes<sizeof(c10::StorageImpl)>(storage);
  if (const auto* autograd = AutogradOf(second))
    PrefetchBytes<sizeof(torch::autograd::AutogradMeta)>(autograd);

  if (c10::StorageImpl* storage = StorageOf(first))
    __builtin_prefetch(storage->_mutable_data_ptr_no_checks().get(), 1);
  constexpr size_t kNodeBytes = 512;  // of most nodes, with what they saved
  if (const auto* autograd = AutogradOf(first)) PrefetchBytes<kNodeBytes>(autograd->grad_fn_.get());
}

// Throws where a tensor's memory was given back while the tensor lives, which kernels do not look
// at: they would read address 0. A view of a weight of sharding.fully_shard is such a tensor once
// the weight's module is left. The weight itself has a storage that says so when it is read.
void CheckMemory(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->_mutable_data_ptr_no_checks().get() != nullptr || tensor.is_meta()) return;
  if (tensor.numel() == 0 || storage->nbytes() == 0) return;
  if (storage->get_extra_meta().custom_data_ptr_error_msg_.has_value()) return;
  throw Error(
      "the memory of this tensor has been given back: it is a view of a sharded module's weight "
      "(sharding.fully_shard), whose values are here only within the module's forward; do not keep "
      "the view beyond it");
}

int CollectTensor(lua_State* state) {
  TensorBox* box = BoxAt<TensorBox>(state, 1, kTensorTag);
  if (box == nullptr) return 0;
  PrefetchOlder(box);
  Unlink(box);
  Release(box->held);
  box->tag = 0;
  box->tensor.~Tensor();
  return 0;
}

int DtypeToString(lua_State* state) {
  at::ScalarType dtype;
  if (!DtypeAt(state, 1, &dtype)) throw Error("tostring: not a dtype");
  return PushString(state, absl::StrCat("torch.", DtypeName(dtype)));
}

}  // namespace

void RegisterTensor(lua_State* state) {
  luaL_newmetatable(state, kTensorMetatable);
  SetString(state, "__name", "tensor");
  SetFunctions(state, {{"__gc", CollectTensor}});
  tensor_metatable = luaL_ref(state, LUA_REGISTRYINDEX);

  luaL_newmetatable(state, kDtypeMetatable);
  SetString(state, "__name", "dtype");
  SetFunctions(state, {{"__tostring", DtypeToString}});
  lua_newtable(state);
  for (const NamedDtype& named : NamedDtypes()) {
    new (lua_newuserdata(state, sizeof(DtypeBox))) DtypeBox{kDtypeTag, named.dtype};
    lua_pushvalue(state, -3);
    lua_setmetatable(state, -2);
    lua_rawseti(state, -2, static_cast<int>(named.dtype) + 1);
  }
  lua_setfield(state, LUA_REGISTRYINDEX, kDtypes);
  lua_pop(state, 1);
}

int PushTensor(lua_State* state, at::Tensor tensor) {
  if (!tensor.defined()) {
    lua_pushnil(state);
    return 1;
  }
  const c10::Device device = tensor.device();
  // Constructed before it has a finaliser: the collector never sees a half-made box.
  auto* box = new (lua_newuserdata(state, sizeof(TensorBox)))
      TensorBox{kTensorTag, false, HeldBytes(), std::move(tensor)};
  box->held = Hold(box->tensor);
  Link(box);
  lua_rawgeti(state, LUA_REGISTRYINDEX, tensor_metatable);
  lua_setmetatable(state, -2);
  StepCollector(state, device);
  return 1;
}

at::Tensor* TensorAt(lua_State* state, int index) {
  TensorBox* box = BoxAt<TensorBox>(state, index, kTensorTag);
  if (box == nullptr) return nullptr;
  if (box->has_unrooted_hooks) RootHooks(state, index);
  CheckMemory(box->tensor);
  return &box->tensor;
}

const at::Tensor* PeekTensor(lua_State* state, int index) {
  const TensorBox* box = BoxAt<TensorBox>(state, index, kTensorTag);
  return box == nullptr ? nullptr : &box->tensor;
}

bool SetUnrootedHooks(lua_State* state, int index, bool unrooted) {
  TensorBox* box = BoxAt<TensorBox>(state, index, kTensorTag);
  return std::exchange(box->has_unrooted_hooks, unrooted);
}

const at::Tensor& ReadTensor(lua_State* state, int index, const char* name) {
  const at::Tensor* tensor = TensorAt(state, index);
  if (tensor == nullptr) ThrowTypeError(state, index, name, "a tensor");
  return *tensor;
}

std::vector<at::Tensor> ReadTensors(lua_State* state, int index, const char* name) {
  ReadTable(state, index, name);
  std::vector<at::Tensor> tensors;
  tensors.reserve(lua_objlen(state, index));
  ForEachElement(state, index, [&](int i) {
    const at::Tensor* tensor = TensorAt(state, -1);
    if (tensor == nullptr) {
      ThrowTypeError(state, -1, absl::StrCat(name, "[", i, "]").c_str(), "a tensor");
    }
    tensors.push_back(*tensor);
  });
  return tensors;
}

int PushTensors(lua_State* state, const std::vector<at::Tensor>& tensors) {
  return PushArray(state, tensors, [&](const at::Tensor& tensor) { PushTensor(state, tensor); });
}

int PushDtype(lua_State* state, at::ScalarType dtype) {
  lua_getfield(state, LUA_REGISTRYINDEX, kDtypes);
  lua_rawgeti(state, -1, static_cast<int>(dtype) + 1);
  lua_remove(state, -2);
  if (lua_isnil(state, -1)) {
    throw Error(absl::StrCat("dtype ", c10::toString(dtype), " has no name in Lua"));
  }
  return 1;
}

bool DtypeAt(lua_State* state, int index, at::ScalarType* dtype) {
  const DtypeBox* box = BoxAt<DtypeBox>(state, index, kDtypeTag);
  if (box == nullptr) return false;
  *dtype = box->dtype;
  return true;
}

at::ScalarType ReadDtype(lua_State* state, int index, const char* name) {
  at::ScalarType dtype = at::kFloat;
  if (!DtypeAt(state, index, &dtype))
    ThrowTypeError(state, index, name, "a dtype, as torch.float32");
  return dtype;
}

std::string DtypeName(at::ScalarType dtype) {
  for (const NamedDtype& named : NamedDtypes()) {
    if (named.dtype == dtype) return named.name;
  }
  return c10::toString(dtype);
}

const std::vector<NamedDtype>& NamedDtypes() {
  static const std::vector<NamedDtype>* const kNamed = new std::vector<NamedDtype>{
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"float8_e4m3fn", at::kFloat8_e4m3fn},
      {"float8_e5m2", at::kFloat8_e5m2},
      {"complex64", at::kComplexFloat},
      {"complex128", at::kComplexDouble},
      {"uint8", at::kByte},
      {"uint16", at::kUInt16},
      {"uint32", at::kUInt32},
      {"uint64", at::kUInt64},
      {"int8", at::kChar},
      {"int16", at::kShort},
      {"int32", at::kInt},
      {"int64", at::kLong},
      {"bool", at::kBool},
  };
  return *kNamed;
}

at::Device ParseDevice(const std::string& text, const std::string& name) {
  std::optional<at::Device> device;
  try {
    device.emplace(text);
  } catch (const c10::Error&) {
    throw Error(absl::StrCat(
        name, " must be \"cpu\", \"cuda\", \"cuda:0\" and so on, or \"meta\", not \"", text, "\""));
  }
  if (!device->is_cuda()) return *device;
  if (!at::hasCUDA()) {
    throw Error(absl::StrCat(name, " is \"", text,
                             "\", but this machine has no GPU that the driver can use"));
  }
  const int count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  if (device->has_index() && device->index() >= count) {
    throw Error(absl::StrCat(name, " is \"", text,
                             "\", but this machine has only cuda:0 to cuda:", count - 1));
  }
  return *device;
}

at::Device ReadDevice(lua_State* state, int index, const char* name) {
  if (lua_type(state, index) != LUA_TSTRING)
    ThrowTypeError(state, index, name, "a device, as \"cuda:0\"");
  return ParseDevice(lua_tostring(state, index), name);
}

std::string KernelMessage(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  // "Could not run 'aten::x' with arguments from the 'Y' backend. This could be because ...", and
  // then some 60 lines that list every dispatch key.
  return InOurWords(
      message.substr(0, message.find(" This could be because the operator doesn't exist")));
}

std::string Describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = absl::StrCat(DtypeName(tensor.scalar_type()), " {",
                                  absl::StrJoin(tensor.sizes().vec(), ", "), "}");
  if (!tensor.is_cpu()) absl::StrAppend(&text, " on ", tensor.device().str());
  return text;
}

}  // namespace lockstep::lua
