#include "driver/lua/vm/math_random.h"

namespace lockstep::lua {

void* PushMathRandomState(lua_State* state) {
  const int top = lua_gettop(state);
  lua_getglobal(state, "math");
  lua_getfield(state, -1, "random");
  if (lua_iscfunction(state, -1) && lua_getupvalue(state, -1, 1) != nullptr &&
      lua_type(state, -1) == LUA_TUSERDATA && lua_objlen(state, -1) == kMathRandomBytes) {
    lua_replace(state, top + 1);
    lua_settop(state, top + 1);
    return lua_touserdata(state, -1);
  }
  lua_settop(state, top);
  return nullptr;
}

}  // namespace lockstep::lua
