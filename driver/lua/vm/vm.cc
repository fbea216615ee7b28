#include "driver/lua/vm/vm.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "c10/util/Exception.h"
#include "driver/lua/vm/running.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/whereabouts.h"
#include "driver/lua/vm/wording.h"

namespace lockstep::lua {
namespace {

// Registry keys.
constexpr char kPendingError[] = "lockstep.pending_error";
constexpr char kTracedError[] = "lockstep.traced_error";
constexpr char kTraceback[] = "lockstep.traceback";
constexpr char kVm[] = "lockstep.vm";

// The state or coroutine that runs on this thread: a call from C++ must go through it. Set while a
// C function runs, and when a call from C++ returns to one.
thread_local lua_State* running = nullptr;

// The collector may run within a C function. It calls each __gc, a C function too, on a state of
// its own, which has no frame of the script.
class Running {
 public:
  explicit Running(lua_State* state) : before_(running) { running = state; }
  ~Running() { running = before_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  lua_State* const before_;
};

// Writes zero bytes of a message as in Lua, "\0": programs that show it treat it as a C string.
std::string WithoutZeros(const std::string& message) {
  return absl::StrReplaceAll(message, {{absl::string_view("\0", 1), "\\0"}});
}

// The string on top of the stack.
std::string ToString(lua_State* state) {
  size_t size = 0;
  const char* text = lua_tolstring(state, -1, &size);
  return {text, size};
}

void PushMessage(lua_State* state, const char* message) {
  const std::string line = ScriptLine(state);
  PushString(state, line);
  lua_pushstring(state, message);
  lua_concat(state, 2);
}

// Runs every C function. Lua's own errors unwind through it untouched: they are no std::exception.
int Wrap(lua_State* state, lua_CFunction function) {
  try {
    const Running here(state);
    const InsideC inside(state);
    return function(state);
  } catch (const PendingError&) {
    lua_getfield(state, LUA_REGISTRYINDEX, kPendingError);
  } catch (const c10::Error& error) {
    PushMessage(state, InOurWords(error.what_without_backtrace()).c_str());
  } catch (const std::exception& error) {
    PushMessage(state, error.what());
  }
  return lua_error(state);
}

// Adds to the message, the only value on the stack, what was probably meant where a name is nil,
// and what to write for other common mistakes: lockstep/help/suggestion.lua. Called while the
// frames of the error still stand.
void AddSuggestion(lua_State* state) {
  const char* message = lua_type(state, 1) == LUA_TSTRING ? lua_tostring(state, 1) : "";
  const auto says = [&](const char* part) { return std::strstr(message, part) != nullptr; };
  if (!says("(a nil value)") && !says("attempt to compare") && !says("a tensor has no field") &&
      !says("x must be a tensor, not ") && !says("\"self\" ") && !says("attempt to concatenate") &&
      !says("near '='") && !absl::StartsWith(message, "lockstep/")) {
    return;
  }
  lua_getglobal(state, "require");
  lua_pushliteral(state, "lockstep.help.suggestion");
  if (lua_pcall(state, 1, 1, 0) == 0) {
    lua_getfield(state, -1, "explain");
    lua_pushvalue(state, 1);
    lua_pushinteger(state, 3);  // above explain and this handler
    if (lua_pcall(state, 2, 1, 0) == 0) lua_replace(state, 1);
  }
  lua_settop(state, 1);
}

// Where the message, the only value on the stack, is of a stack that overflowed: adds the line,
// which LuaJIT leaves out where the call itself found no room, and returns true.
bool IsOverflow(lua_State* state) {
  const bool is_string = lua_type(state, 1) == LUA_TSTRING;
  const absl::string_view message = is_string ? lua_tostring(state, 1) : "";
  if (!absl::EndsWith(message, "stack overflow")) return false;
  lua_Debug frame;
  for (int level = 0; level < 10 && lua_getstack(state, level, &frame) != 0; ++level) {
    lua_getinfo(state, "Sl", &frame);
    if (frame.currentline <= 0 || message.size() > 14) continue;
    lua_pushfstring(state, "%s:%d: stack overflow", frame.short_src, frame.currentline);
    lua_replace(state, 1);
    break;
  }
  return true;
}

// The frames of `traceback`, as Lua writes it, that are the script's own: the library's and C's,
// for a mistake of the script, say nothing to its author. Where the message blames the library,
// all.
std::string ScriptTraceback(const std::string& traceback, absl::string_view message) {
  const auto is_librarys = [](absl::string_view line) {
    return absl::StartsWith(line, "lockstep/") || absl::StartsWith(line, "lockstep.lua:");
  };
  if (is_librarys(message)) return traceback;
  std::vector<std::string> lines = absl::StrSplit(traceback, '\n');
  const auto is_foreign = [&](absl::string_view line) {
    return absl::ConsumePrefix(&line, "\t") && (is_librarys(line) || absl::StartsWith(line, "[C]"));
  };
  std::erase_if(lines, is_foreign);
  // The text after "stack traceback:" may be one frame, and the message already has its line.
  const std::string first = lines.size() < 2 ? "" : lines[1].substr(1, lines[1].find(": in "));
  if (lines.size() <= 2 && absl::StartsWith(message, first)) return "";
  return absl::StrJoin(lines, "\n");
}

// Keeps the traceback of the place where an error was raised: the error passes here again in
// every Call on its way out, when the inner frames are gone.
int HandleMessage(lua_State* state) {
  lua_getfield(state, LUA_REGISTRYINDEX, kTracedError);
  const bool traced = lua_rawequal(state, 1, -1) != 0 && !lua_isnil(state, 1);
  lua_pop(state, 1);
  if (!traced) {
    std::string traceback;
    if (!IsOverflow(state)) {  // which leaves no room for more
      AddSuggestion(state);
      luaL_traceback(state, state, nullptr, 1);
      const char* message = lua_type(state, 1) == LUA_TSTRING ? lua_tostring(state, 1) : "";
      traceback = ScriptTraceback(lua_tostring(state, -1), message);
      lua_pop(state, 1);
    }
    PushString(state, traceback);
    lua_setfield(state, LUA_REGISTRYINDEX, kTraceback);
    lua_pushvalue(state, 1);
    lua_setfield(state, LUA_REGISTRYINDEX, kTracedError);
  }
  return 1;
}

// Returns the error value on top of the stack as text; a table or userdata through its __tostring,
// which may fail: no caller may catch that.
std::string ErrorText(lua_State* state) {
  if (lua_isstring(state, -1)) return WithoutZeros(ToString(state));
  std::string text =
      absl::StrCat("error value of type ", luaL_typename(state, -1), ", not a message");
  if (luaL_getmetafield(state, -1, "__tostring") == 0) return text;
  lua_pushvalue(state, -2);
  lua_State* const caller = running;
  const bool ok = lua_pcall(state, 1, 1, 0) == 0;
  running = caller;
  if (lua_isstring(state, -1)) {
    text = ok ? WithoutZeros(ToString(state))
              : absl::StrCat(text, ", and its __tostring fails: ", WithoutZeros(ToString(state)));
  }
  lua_pop(state, 1);
  return text;
}

int ProtectedCall(lua_State* state, int num_arguments, int num_results) {
  const int handler = lua_gettop(state) - num_arguments;
  lua_pushcfunction(state, HandleMessage);
  lua_insert(state, handler);
  const InsideC back_in_lua(nullptr);
  const int status = lua_pcall(state, num_arguments, num_results, handler);
  running = state;
  lua_remove(state, handler);
  return status;
}

// Returns the names of the modules of the library and of C++.
std::vector<std::string> ModuleNames(lua_State* state, const std::string& root) {
  std::vector<std::string> modules;
  std::error_code none;  // a root that cannot be read has no modules
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(root + "/lockstep", none)) {
    if (entry.path().extension() != ".lua") continue;
    const std::filesystem::path module = entry.path().lexically_relative(root);
    modules.push_back(
        absl::StrReplaceAll((module.parent_path() / module.stem()).string(), {{"/", "."}}));
  }
  lua_getfield(state, LUA_REGISTRYINDEX, "_PRELOAD");
  for (lua_pushnil(state); lua_next(state, -2) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) == LUA_TSTRING) modules.emplace_back(lua_tostring(state, -2));
  }
  lua_pop(state, 1);
  std::sort(modules.begin(), modules.end());
  return modules;
}

// Returns the templates of a package.cpath that name a folder. LuaJIT's default begins with
// "./?.so": a module that is missing elsewhere would be loaded from the current folder, which may
// be a model that was downloaded.
std::string AbsoluteTemplates(absl::string_view path) {
  return absl::StrJoin(
      absl::StrSplit(path, ';', [](absl::string_view one) { return absl::StartsWith(one, "/"); }),
      ";");
}

// A package.loaders function: finds modules of the library, and names their chunks by where they
// lie in it ("lockstep/nn.lua"), whatever the folder that the program was built in.
int SearchLibrary(lua_State* state) {
  size_t size = 0;
  const char* name = lua_tolstring(state, 1, &size);
  std::string file(name, size);
  std::replace(file.begin(), file.end(), '.', '/');
  file += ".lua";
  const std::optional<std::string> code = ReadLibraryFile(state, file);
  if (!code) {
    const std::string& root = OptionsOf(state).library_root;
    lua_pushfstring(state, "\n\tno module '%s' in the library (%s)%s", name, root.c_str(),
                    DidYouMean(name, ModuleNames(state, root)).c_str());
    return 1;
  }
  if (luaL_loadbuffer(state, code->data(), code->size(), absl::StrCat("@", file).c_str()) != 0) {
    throw Error(lua_tostring(state, -1));
  }
  return 1;
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(WithoutZeros(message)) {}

void Call(lua_State* state, int num_arguments, int num_results) {
  if (ProtectedCall(state, num_arguments, num_results) == 0) return;
  PendingError error(ErrorText(state));
  lua_setfield(state, LUA_REGISTRYINDEX, kPendingError);
  throw error;
}

lua_State* RunningState() { return running; }

LuaReference::LuaReference(lua_State* state, int index) {
  lua_getfield(state, LUA_REGISTRYINDEX, kVm);
  state_ = static_cast<LuaVm*>(lua_touserdata(state, -1))->state_;
  lua_pop(state, 1);
  lua_pushvalue(state, index);
  reference_ = luaL_ref(state, LUA_REGISTRYINDEX);
}

LuaReference::~LuaReference() {
  if (const std::shared_ptr<lua_State> state = state_.lock()) {
    luaL_unref(state.get(), LUA_REGISTRYINDEX, reference_);
  }
}

lua_State* LuaReference::Push() const {
  const std::shared_ptr<lua_State> state = state_.lock();
  if (state == nullptr) throw Error("lua: a value is used after its state was closed");
  lua_State* caller = running == nullptr ? state.get() : running;
  if (lua_checkstack(caller, 8) == 0) throw Error("lua: the stack is full");
  lua_rawgeti(caller, LUA_REGISTRYINDEX, reference_);
  return caller;
}

std::string ScriptLine(lua_State* state) {
  lua_Debug frame;
  std::string in_library;
  for (int level = 0; lua_getstack(state, level, &frame) != 0; ++level) {
    lua_getinfo(state, "Sl", &frame);
    if (frame.currentline <= 0) continue;
    const std::string line = absl::StrCat(frame.short_src, ":", frame.currentline, ": ");
    if (!IsLibraryChunk(frame.source)) return line;
    if (in_library.empty()) in_library = line;
  }
  return in_library;
}

std::string RunningScriptLine() {
  std::string line = running == nullptr ? "" : ScriptLine(running);
  if (!line.empty()) line.resize(line.size() - 2);  // the ": "
  return line;
}

const LuaVm::Options& OptionsOf(lua_State* state) {
  lua_getfield(state, LUA_REGISTRYINDEX, kVm);
  const auto* vm = static_cast<const LuaVm*>(lua_touserdata(state, -1));
  lua_pop(state, 1);
  return vm->options();
}

std::optional<std::string> ReadLibraryFile(lua_State* state, const std::string& file) {
  std::ifstream stream(absl::StrCat(OptionsOf(state).library_root, "/", file), std::ios::binary);
  if (!stream) return std::nullopt;
  return std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
}

LuaVm::LuaVm(const Options& options) : options_(options) {
  lua_State* state = luaL_newstate();
  if (state == nullptr) throw Error("lua: no memory for a state");
  state_.reset(state, [](lua_State* closing) {
    StopAnswering(closing);
    lua_close(closing);
    running = nullptr;
  });
  luaL_openlibs(state);

  lua_pushlightuserdata(state, reinterpret_cast<void*>(&Wrap));
  luaJIT_setmode(state, -1, LUAJIT_MODE_WRAPCFUNC | LUAJIT_MODE_ON);
  lua_pop(state, 1);

  lua_pushlightuserdata(state, this);
  lua_setfield(state, LUA_REGISTRYINDEX, kVm);

  lua_getglobal(state, "package");
  const std::string& folder = options.script_folder;
  const std::string path =
      folder.empty() ? "" : absl::StrCat(folder, "/?.lua;", folder, "/?/init.lua");
  PushString(state, path);
  lua_setfield(state, -2, "path");
  lua_getfield(state, -1, "cpath");
  PushString(state, AbsoluteTemplates(lua_tostring(state, -1)));
  lua_setfield(state, -3, "cpath");
  lua_pop(state, 1);
  // After package.preload, before package.path.
  lua_getfield(state, -1, "loaders");
  for (int i = static_cast<int>(lua_objlen(state, -1)); i >= 2; --i) {
    lua_rawgeti(state, -1, i);
    lua_rawseti(state, -2, i + 1);
  }
  lua_pushcfunction(state, SearchLibrary);
  lua_rawseti(state, -2, 2);
  lua_pop(state, 2);
}

void LuaVm::Preload(const char* name, lua_CFunction open) {
  lua_getglobal(state(), "package");
  lua_getfield(state(), -1, "preload");
  lua_pushcfunction(state(), open);
  lua_setfield(state(), -2, name);
  lua_pop(state(), 2);
}

std::optional<ScriptError> LuaVm::RunFile(const std::string& path) {
  return RunLoaded(luaL_loadfile(state(), path.c_str()));
}

std::optional<ScriptError> LuaVm::RunString(const std::string& code, const std::string& chunk) {
  return RunLoaded(luaL_loadbuffer(state(), code.data(), code.size(), chunk.c_str()));
}

std::optional<ScriptError> LuaVm::RunLoaded(int load_status) {
  lua_pushnil(state());
  lua_setfield(state(), LUA_REGISTRYINDEX, kTracedError);
  std::optional<ScriptError> error;
  if (load_status != 0) {
    error = ScriptError{ErrorText(state()), ""};
  } else if (ProtectedCall(state(), 0, 0) != 0) {
    error = ScriptError{ErrorText(state()), ""};
    // Sometimes LuaJIT finds no room to call HandleMessage either.
    if (error->message == "stack overflow")
      error->message += ": a function calls itself without end";
    lua_getfield(state(), LUA_REGISTRYINDEX, kTraceback);
    if (const char* traceback = lua_tostring(state(), -1)) error->traceback = traceback;
    lua_pop(state(), 1);
  }
  lua_settop(state(), 0);
  return error;
}

}  // namespace lockstep::lua
