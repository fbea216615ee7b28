// The modules in C++. Each function leaves its module on the stack: a package.preload function.
// Scripts use the modules of driver/lualib/lockstep, which are built on these.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_OPEN_H_
#define LOCKSTEP_DRIVER_LUA_BIND_OPEN_H_

#include "lua.hpp"

namespace lockstep::lua {

// lockstep.core.<the function's name>
int OpenBatching(lua_State* state);
int OpenCheckpoint(lua_State* state);
int OpenData(lua_State* state);   // sources, mixes and workers
int OpenFiles(lua_State* state);  // folders, and checks that files are complete
int OpenImages(lua_State* state);
int OpenKeep(lua_State* state);  // snapshots in memory
int OpenMimo(lua_State* state);
int OpenSafetensors(lua_State* state);
int OpenSharding(lua_State* state);
int OpenState(lua_State* state);     // what run:save() needs besides files
int OpenTerminal(lua_State* state);  // for the interactive session and for help
int OpenText(lua_State* state);
int OpenTiledMlp(lua_State* state);
int OpenWatching(lua_State* state);  // event files, traces, and costs of operators

int OpenCore(lua_State* state);         // lockstep.core: facts about the program and the machine
int OpenDistributed(lua_State* state);  // lockstep.distributed: ranks and collectives over c10d

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_OPEN_H_
