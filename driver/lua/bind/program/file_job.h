// Work on files in the background, for Lua: `start` of lockstep.core.files.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILE_JOB_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILE_JOB_H_

#include "lua.hpp"

namespace lockstep::lua {

// start({step, ...}) -> job. The steps are done in order by a thread, each an array:
//   {"tensors", path, tensors by name, metadata}, a file of safetensors; {"text", path, text};
//   {"sync", folder}; {"rename", from, to}; {"remove", folder, {name, ...}}, as remove_folder;
//   {"copies", copies}, which waits for what background_copies began.
// The tensors must not change until the job is done.
int StartFileJob(lua_State* state);

// Makes the methods of jobs: is_done() and wait() -> for each step {bytes = , crc32 = } if it wrote
// a file, otherwise false; raises the error of the step that failed.
void RegisterFileJob(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILE_JOB_H_
