#include "driver/lua/bind/context.h"

namespace lockstep::driver {
namespace {

constexpr char kContext[] = "lockstep.context";

}  // namespace

void SetContext(lua_State* state, Context& context) {
  lua_pushlightuserdata(state, &context);
  lua_setfield(state, LUA_REGISTRYINDEX, kContext);
}

Context& GetContext(lua_State* state) {
  lua_getfield(state, LUA_REGISTRYINDEX, kContext);
  Context* context = static_cast<Context*>(lua_touserdata(state, -1));
  lua_pop(state, 1);
  return *context;
}

}  // namespace lockstep::driver
