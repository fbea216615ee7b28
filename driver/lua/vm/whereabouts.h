// Finds the line that a script is at, from another thread: for the watchdog's table.
//
//    AnswerForThisThread(vm.state());  // in the script's thread
//    // in another thread: "train.lua:11"
//    const std::string line = FindScriptLine();
//
// A script that hangs answers no request, so a signal interrupts it. Inside a function of C++ (an
// operator, a collective, a call that waits) Lua's stack does not change, and the signal's handler
// reads it. In Lua, the handler sets a hook, which the interpreter calls before its next
// instruction. Two places give no answer: a loop that LuaJIT has compiled and that calls no C++,
// and a function of Lua's own library that waits, such as os.execute.
//
// The signal may interrupt a system call of the script: use it only when the run is about to end.
//
// Source: lua_sethook "can be called asynchronously (e.g. during a signal)", LuaJIT's
// lj_dispatch.c.

#ifndef LOCKSTEP_DRIVER_LUA_VM_WHEREABOUTS_H_
#define LOCKSTEP_DRIVER_LUA_VM_WHEREABOUTS_H_

#include <string>

#include "lua.hpp"

namespace lockstep::lua {

// Answers for the script of `state`, which the calling thread runs, until StopAnswering. Installs a
// handler for SIGURG, which nothing else here uses and which is ignored by default.
void AnswerForThisThread(lua_State* state);
// Call it before `state` is closed. Has no effect for another state.
void StopAnswering(lua_State* state);

// Returns the innermost line of the script, not of the library, or "" if the script's thread gives
// no answer within a second. Thread-safe; not for the script's own thread.
std::string FindScriptLine();

// While it lives, this thread is inside a function of C++ that `state` has called; for null, it has
// returned to Lua.
class InsideC {
 public:
  explicit InsideC(lua_State* state);
  InsideC(const InsideC&) = delete;
  InsideC& operator=(const InsideC&) = delete;
  ~InsideC();

 private:
  lua_State* before_;
};

// Whether a chunk of this name is the library's: its lines are not the script's.
bool IsLibraryChunk(const char* source);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_WHEREABOUTS_H_
