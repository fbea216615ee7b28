// Which line a script is at, asked from another thread: for the watchdog's table.
//
//   AnswerForThisThread(vm.state());                                            // the script's
//   thread const std::string line = FindScriptLine(std::chrono::milliseconds(300));    // another:
//   "train.lua:11"
//
// A script that hangs answers nobody, so a signal interrupts it. Inside a function of C++ (an
// operator, a collective, a call that waits) Lua's stack stands still, and the signal's handler
// reads it. In Lua, the handler sets a hook, which the interpreter calls before its next
// instruction. Two places give no answer: a loop that LuaJIT has compiled and that calls no C++,
// and a function of Lua's own library that waits, such as os.execute.
//
// The signal may cut a system call of the script short: use it where the run ends anyway.
// Source: lua_sethook "can be called asynchronously (e.g. during a signal)", LuaJIT's
// lj_dispatch.c.

#ifndef LOCKSTEP_DRIVER_LUA_VM_WHEREABOUTS_H_
#define LOCKSTEP_DRIVER_LUA_VM_WHEREABOUTS_H_

#include <chrono>
#include <string>

#include "lua.hpp"

namespace lockstep::lua {

// The calling thread runs the script of `state`, until StopAnswering. Installs a handler for
// SIGURG, which nothing else here uses and which is ignored by default.
void AnswerForThisThread(lua_State* state);
// To be called before `state` is closed; of another state, without effect.
void StopAnswering(lua_State* state);

// The innermost line of the script, not of the library; "" where the script's thread gives no
// answer within `patience`. Thread-safe; not for the script's own thread.
std::string FindScriptLine(std::chrono::milliseconds patience);

// While it lives, this thread is inside a function of C++ that `state` has called; for null, it has
// gone back to Lua.
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
