// The facts about the run that a rank's bindings use.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_CONTEXT_H_
#define LOCKSTEP_DRIVER_LUA_BIND_CONTEXT_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "driver/ranks/world.h"
#include "driver/settings/command_line.h"
#include "lua.hpp"

namespace lockstep::driver {

struct Context {
  CommandLine command_line;
  World world;
  std::chrono::milliseconds timeout{0};
  std::string run_dir;         // the same on every rank; not created yet
  bool settings_used = false;  // run.config has taken the --set values
  // What is wrong with the command line, as the script has found. Empty: nothing so far.
  std::string usage_error;
  // Ends this rank's process after all ranks have agreed to end. Does not return.
  std::function<void(int exit_code, const std::string& reason)> end_together;
  // Called after the script has ended normally, before its Lua state is closed.
  std::vector<std::function<void()>> at_end;
};

// Stores the context in this state; the context must outlive the state.
void SetContext(lua_State* state, Context& context);
Context& GetContext(lua_State* state);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LUA_BIND_CONTEXT_H_
