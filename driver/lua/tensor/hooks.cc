#include "driver/lua/tensor/hooks.h"

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::lua {
namespace {

class HookList;

// The hooks of one state.
struct Hooks {
  std::unordered_set<HookList*> lists;
  std::unordered_map<const c10::TensorImpl*, HookList*> by_tensor;  // each tensor's newest
  bool has_sentinel = false;
};

struct Handle {
  std::weak_ptr<HookList> list;
  int id;
};

}  // namespace

template <>
inline constexpr const char* kObjectName<std::shared_ptr<Hooks>> = "table of hooks";
template <>
inline constexpr const char* kObjectName<Handle> = "hook handle";

namespace {

// Registry keys.
constexpr char kHooks[] = "lockstep.hooks";
constexpr char kValues[] = "lockstep.hooks.values";  // weak: a HookList's address to its tensor
constexpr char kSentinel[] = "lockstep.hooks.sentinel";

// Returns the state's hooks, or nullptr where it has none or is being closed.
std::shared_ptr<Hooks> HooksOf(lua_State* state) {
  lua_getfield(state, LUA_REGISTRYINDEX, kHooks);
  const std::shared_ptr<Hooks>* hooks = ObjectAt<std::shared_ptr<Hooks>>(state, -1);
  lua_pop(state, 1);
  return hooks == nullptr ? nullptr : *hooks;
}

// The hooks of one tensor, in the order of registration: one hook of the C++ tensor, which owns
// this list.
class HookList : public std::enable_shared_from_this<HookList> {
 public:
  HookList(lua_State* state, std::shared_ptr<Hooks> hooks, const at::Tensor& tensor)
      : hooks_(std::move(hooks)), tensor_(tensor.getIntrusivePtr()), node_(tensor.grad_fn().get()) {
    impl_ = tensor.unsafeGetTensorImpl();
    lua_getfield(state, LUA_REGISTRYINDEX, kValues);
    values_.emplace(state, -1);
    lua_newtable(state);
    functions_.emplace(state, -1);
    lua_pop(state, 2);
    hooks_->lists.insert(this);
    hooks_->by_tensor[impl_] = this;
  }
  HookList(const HookList&) = delete;
  HookList& operator=(const HookList&) = delete;
  ~HookList() {
    hooks_->lists.erase(this);
    const auto newest = hooks_->by_tensor.find(impl_);
    if (newest != hooks_->by_tensor.end() && newest->second == this) {
      hooks_->by_tensor.erase(newest);
    }
  }

  // Returns whether a hook that is registered now belongs here. An operator that wrote into the
  // tensor since has given it another history, whose gradient is another.
  bool BelongsTo(const at::Tensor& tensor) const { return node_ == tensor.grad_fn().get(); }

  // Adds the function at `function`, of the tensor whose value is at `value`. Returns its id.
  int Add(lua_State* state, int value, int function) {
    lua_getfield(state, LUA_REGISTRYINDEX, kValues);
    lua_pushlightuserdata(state, this);
    lua_pushvalue(state, value);
    lua_rawset(state, -3);
    lua_pop(state, 1);
    PushFunctions();
    if (!lua_istable(state, -1)) {  // another value of the tensor had them, and was collected
      lua_pop(state, 1);
      lua_newtable(state);
      functions_.emplace(state, -1);
    }
    lua_pushvalue(state, function);
    lua_rawseti(state, -2, ++last_id_);
    lua_pop(state, 1);
    ids_.push_back(last_id_);
    return last_id_;
  }

  void Remove(int id) {
    std::erase(ids_, id);
    lua_State* state = PushFunctions();
    if (lua_istable(state, -1)) {
      lua_pushnil(state);
      lua_rawseti(state, -2, id);
    }
    lua_pop(state, 1);
  }

  // Returns what the hooks make of the gradient, or an undefined tensor where they leave it.
  at::Tensor Run(const at::Tensor& gradient) {
    at::Tensor result;
    const std::vector<int> ids = ids_;  // a hook may remove itself, or add another
    for (const int id : ids) {
      lua_State* state = PushFunctions();
      if (lua_istable(state, -1)) {
        lua_rawgeti(state, -1, id);
        lua_replace(state, -2);
      }
      if (lua_isnil(state, -1)) {
        lua_pop(state, 1);
        continue;
      }
      PushTensor(state, result.defined() ? result : gradient);
      Call(state, 1, 1);
      if (!lua_isnil(state, -1)) {
        result = ReadTensor(state, lua_gettop(state), "register_hook: what the hook returns");
      }
      lua_pop(state, 1);
    }
    return result;
  }

  // Roots the functions in the table on top of the stack.
  void Root(lua_State* state) {
    if (!functions_.has_value()) functions_.emplace(state, -1);
  }

  // Unroots the functions where one value in Lua alone holds the tensor.
  void Unroot(lua_State* state) {
    if (!functions_.has_value() || IsClosing()) return;
    const int top = lua_gettop(state);
    PushValue(state);
    const at::Tensor* tensor = PeekTensor(state, -1);
    if (tensor != nullptr && tensor->use_count() == 1 && HoldsHistory(*tensor)) {
      if (SetUnrootedHooks(state, -1, true)) {
        lua_getfenv(state, -1);
      } else {
        lua_newtable(state);
        lua_pushvalue(state, -1);
        lua_setfenv(state, -3);
      }
      lua_pushlightuserdata(state, this);
      functions_->Push();
      lua_rawset(state, -3);
      functions_.reset();
    }
    lua_settop(state, top);
  }

 private:
  // Returns whether Lua collects all it has, at the program's end. No function is called any more.
  bool IsClosing() const {
    try {
      lua_pop(functions_->Push(), 1);
      return false;
    } catch (const Error&) {
      return true;
    }
  }

  // Returns whether the tensor alone keeps the part of the graph that calls the hooks.
  bool HoldsHistory(const at::Tensor& tensor) const {
    return !tensor.is_view() && BelongsTo(tensor) &&
           (node_ == nullptr || tensor.grad_fn().use_count() == 1);
  }

  // Pushes the tensor's value, or nil where it was collected.
  void PushValue(lua_State* state) {
    lua_getfield(state, LUA_REGISTRYINDEX, kValues);
    lua_pushlightuserdata(state, this);
    lua_rawget(state, -2);
    lua_remove(state, -2);
  }

  // Pushes the table of functions by id on the stack of the state that runs, or nil where it was
  // collected. Returns that state.
  lua_State* PushFunctions() {
    if (functions_.has_value()) return functions_->Push();
    lua_State* state = values_->Push();
    lua_pop(state, 1);
    PushValue(state);
    if (lua_isnil(state, -1)) return state;
    lua_getfenv(state, -1);
    lua_pushlightuserdata(state, this);
    lua_rawget(state, -2);
    lua_replace(state, -3);
    lua_pop(state, 1);
    return state;
  }

  std::shared_ptr<Hooks> hooks_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;  // keeps its address
  const c10::TensorImpl* impl_;
  const torch::autograd::Node* node_;      // that made the tensor; nullptr: a leaf
  std::optional<LuaReference> values_;     // the table kValues
  std::optional<LuaReference> functions_;  // by id; none: unrooted
  std::vector<int> ids_;
  int last_id_ = 0;
};

// Leaves a value that nothing refers to: the next cycle of the collector finds it.
void PlaceSentinel(lua_State* state, Hooks& hooks);

int CollectSentinel(lua_State* state) {
  const std::shared_ptr<Hooks> hooks = HooksOf(state);
  if (hooks == nullptr) return 0;
  hooks->has_sentinel = false;
  for (HookList* list : hooks->lists) list->Unroot(state);
  if (!hooks->lists.empty()) PlaceSentinel(state, *hooks);
  return 0;
}

void PlaceSentinel(lua_State* state, Hooks& hooks) {
  if (hooks.has_sentinel) return;
  hooks.has_sentinel = true;
  lua_newuserdata(state, 1);
  if (luaL_newmetatable(state, kSentinel) != 0) SetFunctions(state, {{"__gc", CollectSentinel}});
  lua_setmetatable(state, -2);
  lua_pop(state, 1);
}

int RemoveHook(lua_State* state) {
  const Handle& handle = ReadObject<Handle>(state, 1, "remove: the handle");
  if (const std::shared_ptr<HookList> list = handle.list.lock()) list->Remove(handle.id);
  return 0;
}

// Makes the tables of the state, once.
std::shared_ptr<Hooks> MakeHooks(lua_State* state) {
  RegisterObject<std::shared_ptr<Hooks>>(state, {});
  RegisterObject<Handle>(state, {{"remove", RemoveHook}});
  auto hooks = std::make_shared<Hooks>();
  PushObject(state, hooks);
  lua_setfield(state, LUA_REGISTRYINDEX, kHooks);
  lua_newtable(state);
  MakeWeak(state, "v");
  lua_setfield(state, LUA_REGISTRYINDEX, kValues);
  return hooks;
}

// Returns the list that a hook of the tensor belongs to, a new one perhaps.
std::shared_ptr<HookList> ListOf(lua_State* state, const at::Tensor& tensor) {
  std::shared_ptr<Hooks> hooks = HooksOf(state);
  if (hooks == nullptr) hooks = MakeHooks(state);
  PlaceSentinel(state, *hooks);
  const auto newest = hooks->by_tensor.find(tensor.unsafeGetTensorImpl());
  if (newest != hooks->by_tensor.end() && newest->second->BelongsTo(tensor)) {
    return newest->second->shared_from_this();
  }
  auto list = std::make_shared<HookList>(state, hooks, tensor);
  tensor.register_hook([list](const at::Tensor& gradient) { return list->Run(gradient); });
  return list;
}

}  // namespace

int RegisterHook(lua_State* state) {
  const at::Tensor& tensor = ReadTensor(state, 1, "register_hook: x");
  ReadFunction(state, 2, "register_hook: the hook");
  const std::shared_ptr<HookList> list =
      PrefixErrors("register_hook", [&] { return ListOf(state, tensor); });
  const int id = list->Add(state, 1, 2);
  return PushObject(state, Handle{list, id});
}

void RootHooks(lua_State* state, int index) {
  lua_checkstack(state, 8);
  const int value = index > 0 ? index : lua_gettop(state) + index + 1;
  SetUnrootedHooks(state, value, false);
  const std::shared_ptr<Hooks> hooks = HooksOf(state);
  if (hooks == nullptr) return;
  lua_getfenv(state, value);
  for (lua_pushnil(state); lua_next(state, -2) != 0; lua_pop(state, 1)) {
    auto* list = static_cast<HookList*>(lua_touserdata(state, -2));
    if (hooks->lists.count(list) != 0) list->Root(state);
  }
  lua_pop(state, 1);
  lua_pushvalue(state, LUA_GLOBALSINDEX);
  lua_setfenv(state, value);
}

}  // namespace lockstep::lua
