// What a rank's bindings know of the run they are part of.

#ifndef LOCKSTEP_DRIVER_RANKS_CONTEXT_H_
#define LOCKSTEP_DRIVER_RANKS_CONTEXT_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "driver/launch/command_line.h"
#include "driver/ranks/world.h"
#include "lua.hpp"

namespace lockstep::driver {

struct Context {
  CommandLine command_line;
  World world;
  std::chrono::milliseconds timeout{0};
  std::string run_dir;         // the same on every rank; nobody has made it yet
  bool settings_used = false;  // run.config has taken the --set values
  // Ends this rank's process, as every rank does on which the same was agreed. Does not return.
  std::function<void(int exit_code, const std::string& reason)> end_together;
  // Called once the script has ended well, before its Lua state is closed.
  std::vector<std::function<void()>> at_end;
};

// The context that SetContext put into this state; it must outlive the state.
void SetContext(lua_State* state, Context& context);
Context& GetContext(lua_State* state);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_CONTEXT_H_
