// C++ objects as Lua values.
//
//    template <> inline constexpr const char* kObjectName<Group> = "group";
//    RegisterObject<Group>(state, {{"size", GroupSize}});   // once per state
//    PushObject(state, Group{...});
//    Group& group = ReadObject<Group>(state, 1, "group");
//
// The object is moved into a userdata, and the collector destroys it. Messages use the name, and it
// names the metatable.

#ifndef LOCKSTEP_DRIVER_LUA_VM_OBJECT_H_
#define LOCKSTEP_DRIVER_LUA_VM_OBJECT_H_

#include <initializer_list>
#include <new>
#include <string>
#include <utility>

#include "driver/lua/vm/stack.h"
#include "lua.hpp"

namespace lockstep::lua {

template <typename T>
inline constexpr const char* kObjectName = nullptr;

template <typename T>
T* ObjectAt(lua_State* state, int index) {
  if (lua_type(state, index) != LUA_TUSERDATA || lua_getmetatable(state, index) == 0)
    return nullptr;
  luaL_getmetatable(state, kObjectName<T>);
  const bool same = lua_rawequal(state, -1, -2) != 0;
  lua_pop(state, 2);
  return same ? static_cast<T*>(lua_touserdata(state, index)) : nullptr;
}

template <typename T>
T& ReadObject(lua_State* state, int index, const char* name) {
  T* object = ObjectAt<T>(state, index);
  if (object == nullptr)
    ThrowTypeError(state, index, name, (std::string("a ") + kObjectName<T>).c_str());
  return *object;
}

template <typename T>
int CollectObject(lua_State* state) {
  T* object = ObjectAt<T>(state, 1);
  if (object == nullptr) return 0;
  // Without its metatable the value is not a T any more: a second collection finds nothing.
  lua_pushnil(state);
  lua_setmetatable(state, 1);
  object->~T();
  return 0;
}

template <typename T>
void RegisterObject(lua_State* state, std::initializer_list<Function> methods) {
  if (luaL_newmetatable(state, kObjectName<T>) != 0) {
    SetString(state, "__name", kObjectName<T>);
    lua_newtable(state);
    SetFunctions(state, methods);
    lua_setfield(state, -2, "__index");
    SetFunctions(state, {{"__gc", CollectObject<T>}});
  }
  lua_pop(state, 1);
}

template <typename T>
int PushObject(lua_State* state, T object) {
  // Constructed before it has a finaliser: the collector never sees a half-made object.
  new (lua_newuserdata(state, sizeof(T))) T(std::move(object));
  luaL_getmetatable(state, kObjectName<T>);
  lua_setmetatable(state, -2);
  return 1;
}

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_OBJECT_H_
