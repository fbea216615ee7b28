// lockstep.core.terminal: the interactive session, and help.

#include <pthread.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/terminal/line_editor.h"

namespace lockstep::lua {
namespace {

// Calls the function at `index` for the word, and returns its array of strings. An error in it
// gives no completion: it must not pass through libedit.
std::vector<std::string> Complete(lua_State* state, int index, const std::string& word) {
  const int top = lua_gettop(state);
  std::vector<std::string> candidates;
  lua_pushvalue(state, index);
  PushString(state, word);
  if (lua_pcall(state, 1, 1, 0) == 0 && lua_istable(state, -1)) {
    ForEachElement(state, -1, [&](int) {
      if (const char* text = lua_tostring(state, -1)) candidates.emplace_back(text);
    });
  }
  lua_settop(state, top);
  return candidates;
}

// read_line(prompt: string, complete: fun(word: string): string[]) -> line: string?,
//     is_interrupted: boolean
// A line that somebody types, with editing, history and completion where there is a terminal; nil
// at the end of input. `complete` gives what may stand in place of what is before the cursor.
// Ctrl-C voids the line.
int ReadLine(lua_State* state) {
  const std::string prompt = ReadString(state, 1, "read_line: prompt");
  ReadFunction(state, 2, "read_line: complete");
  const driver::TypedLine line = driver::ReadLine(
      prompt, [state](const std::string& word) { return Complete(state, 2, word); });
  if (line.is_end) {
    lua_pushnil(state);
  } else {
    PushString(state, line.text);
  }
  lua_pushboolean(state, line.is_interrupted);
  return 2;
}

// --- Ctrl-C --------------------------------------------------------------------------------------

lua_State* interruptible = nullptr;
pthread_t script_thread;

void SetSigintHandler(void (*handler)(int), struct sigaction* before = nullptr) {
  struct sigaction action {};
  action.sa_handler = handler;  // without SA_RESTART: it ends a wait for input, too
  sigaction(SIGINT, &action, before);
}

void HandleSigint(int signal);

// Runs before the next instruction of whatever Lua runs. The script may catch the error, and be
// interrupted again.
void Interrupt(lua_State* state, lua_Debug* /*event*/) {
  lua_sethook(state, nullptr, 0, 0);
  SetSigintHandler(HandleSigint);
  {
    // Gone before the error, which may pass over what owns something.
    const std::string message = absl::StrCat(ScriptLine(state), "interrupted");
    PushString(state, message);
  }
  lua_error(state);
}

// Where no Lua runs for long, in an operator perhaps, a second Ctrl-C ends the program.
// lua_sethook is what may be called in a handler, on the thread that runs Lua.
void HandleSigint(int signal) {
  if (pthread_equal(pthread_self(), script_thread) == 0) {
    pthread_kill(script_thread, signal);
    return;
  }
  SetSigintHandler(SIG_DFL);
  lua_sethook(interruptible, Interrupt, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

// interruptibly(fn: fun(), handler: fun(message: any): any) -> ok: boolean, message: any
// As xpcall(fn, handler). At a terminal Ctrl-C raises an error in fn, where that is not compiled by
// the JIT.
int Interruptibly(lua_State* state) {
  ReadFunction(state, 1, "interruptibly: fn");
  ReadFunction(state, 2, "interruptibly: handler");
  const bool catches = driver::HasTerminal();
  interruptible = state;
  script_thread = pthread_self();
  struct sigaction before {};
  if (catches) SetSigintHandler(HandleSigint, &before);
  lua_pushvalue(state, 1);
  const bool ok = lua_pcall(state, 0, 0, 2) == 0;
  if (catches) {
    sigaction(SIGINT, &before, nullptr);
    lua_sethook(state, nullptr, 0, 0);
  }
  lua_pushboolean(state, ok);
  if (ok) return 1;
  lua_insert(state, -2);
  return 2;
}

// read_library(file: string) -> string
// The text of a file of the Lua library, as "lockstep/nn.lua".
int ReadLibrary(lua_State* state) {
  const std::string file = ReadString(state, 1, "read_library: file");
  const std::optional<std::string> text = ReadLibraryFile(state, file);
  if (!text) throw Error(absl::StrCat("read_library: there is no ", file, " in the library"));
  return PushString(state, *text);
}

}  // namespace

int OpenTerminal(lua_State* state) {
  lua_newtable(state);
  SetFunctions(
      state,
      {{"read_line", ReadLine}, {"interruptibly", Interruptibly}, {"read_library", ReadLibrary}});
  return 1;
}

}  // namespace lockstep::lua
