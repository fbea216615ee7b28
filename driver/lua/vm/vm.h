// The Lua runtime: one LuaJIT state, and the rules by which errors cross it.
//
//    LuaVm vm({.library_root = "driver/lualib", .script_folder = "scripts"});
//    std::optional<ScriptError> error = vm.RunFile("scripts/train.lua");
//
// The rules. A C++ exception never crosses a Lua frame: every C function runs inside one wrapper
// (LuaJIT's WRAPCFUNC mode) that turns exceptions into Lua errors with the script's line. A Lua
// error never crosses a C++ frame that owns a resource: C++ calls Lua through Call, which throws
// PendingError. So bindings throw, and never call lua_error or luaL_check*.
//
// Thread: a state belongs to the thread that made it.

#ifndef LOCKSTEP_DRIVER_LUA_VM_VM_H_
#define LOCKSTEP_DRIVER_LUA_VM_VM_H_

#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "lua.hpp"

namespace lockstep::lua {

// The error that a binding throws for a caller's mistake. The wrapper puts the script's line before
// it.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
};

// A Lua error that passes through C++ frames; its value waits in the state.
class PendingError : public std::exception {
 public:
  explicit PendingError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// The error of a chunk. The message starts with the script's line.
struct ScriptError {
  std::string message;
  std::string traceback;
};

// Calls the function below `num_arguments` arguments on the stack, as lua_call does. If the
// function raises an error, pops the arguments and throws PendingError.
void Call(lua_State* state, int num_arguments, int num_results);

// A Lua value that C++ keeps, such as a function to call later. Thread: the thread that owns the
// state.
class LuaReference {
 public:
  LuaReference(lua_State* state, int index);
  LuaReference(const LuaReference&) = delete;
  LuaReference& operator=(const LuaReference&) = delete;
  ~LuaReference();

  // Pushes the value on the stack of the state that runs now, which may be a coroutine, and returns
  // that state: calls must go through it. Throws Error if the state is closed.
  lua_State* Push() const;

 private:
  std::weak_ptr<lua_State> state_;
  int reference_;
};

// Returns the innermost line outside the library, as "scripts/train.lua:12: ", or "".
std::string ScriptLine(lua_State* state);

// Returns the line that this thread runs, as "scripts/train.lua:12", or "" if it runs no Lua.
std::string RunningScriptLine();

class LuaVm {
 public:
  struct Options {
    std::string library_root;   // `require` looks here first: driver/lua
    std::string script_folder;  // then here; empty: only in library_root
  };

  explicit LuaVm(const Options& options);

  LuaVm(const LuaVm&) = delete;
  LuaVm& operator=(const LuaVm&) = delete;

  lua_State* state() { return state_.get(); }

  const Options& options() const { return options_; }

  // `require name` calls `open`, which leaves the module on the stack.
  void Preload(const char* name, lua_CFunction open);

  // Compiles and runs the file at `path`, or `code` under the name `chunk`. Returns the error, if
  // any.
  std::optional<ScriptError> RunFile(const std::string& path);
  std::optional<ScriptError> RunString(const std::string& code, const std::string& chunk);

 private:
  friend class LuaReference;
  std::optional<ScriptError> RunLoaded(int load_status);

  Options options_;
  std::shared_ptr<lua_State> state_;  // shared only so that references can tell when it closes
};

// Returns what the VM of this state was made with.
const LuaVm::Options& OptionsOf(lua_State* state);

// Returns the text of a file of the Lua library, as "lockstep/nn.lua"; nullopt: there is none.
std::optional<std::string> ReadLibraryFile(lua_State* state, const std::string& file);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_VM_H_
