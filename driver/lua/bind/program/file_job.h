// lockstep.core.files: work on files in the background.

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILE_JOB_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILE_JOB_H_

#include "lua.hpp"

namespace lockstep::lua {

// start(steps: any[][]) -> Job
// Starts a thread that works on files, step by step up to the first error. The tensors must not
// change meanwhile. Steps: {"tensors", path, tensors by name, metadata}, {"text", path, text},
// {"sync", folder}, {"rename", from, to}, {"remove", folder, names} (see remove_folder), {"copies",
// copies}, which waits for what background_copies began.
int StartFileJob(lua_State* state);

// Makes the methods of jobs: is_done() and wait() -> for each step {bytes = , crc32 = } if it wrote
// a file, otherwise false; raises the error of the step that failed.
void RegisterFileJob(lua_State* state);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_FILE_JOB_H_
