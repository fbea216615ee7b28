#include "driver/lua/terminal.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/files.h"
#include "driver/line_editor.h"
#include "driver/lua/stack.h"
#include "driver/lua/vm.h"

namespace lockstep::lua {
namespace {

// What the function at `index` returns for the word: an array of strings. An error in it is no more
// than no completion: it must not pass through libedit.
std::vector<std::string> Complete(lua_State* state, int index, const std::string& word) {
  const int top = lua_gettop(state);
  std::vector<std::string> candidates;
  lua_pushvalue(state, index);
  PushString(state, word);
  if (lua_pcall(state, 1, 1, 0) == 0 && lua_istable(state, -1)) {
    for (int i = 1; i <= static_cast<int>(lua_objlen(state, -1)); ++i) {
      lua_rawgeti(state, -1, i);
      if (const char* text = lua_tostring(state, -1)) candidates.emplace_back(text);
      lua_pop(state, 1);
    }
  }
  lua_settop(state, top);
  return candidates;
}

// read_line(prompt, complete) -> the line, or nil at the end of input.
int ReadLine(lua_State* state) {
  const std::string prompt = ReadString(state, 1, "read_line: prompt");
  ReadFunction(state, 2, "read_line: complete");
  const std::optional<std::string> line = driver::ReadLine(
      prompt, [state](const std::string& word) { return Complete(state, 2, word); });
  if (line.has_value()) {
    PushString(state, *line);
  } else {
    lua_pushnil(state);
  }
  return 1;
}

// read_library(file) -> the text of a file of the Lua library, as "lockstep/nn.lua".
int ReadLibrary(lua_State* state) {
  const std::string file = ReadString(state, 1, "read_library: file");
  std::ifstream stream(absl::StrCat(driver::FindRunfile("driver/lua"), "/", file),
                       std::ios::binary);
  if (!stream) throw Error(absl::StrCat("read_library: there is no ", file, " in the library"));
  PushString(state, std::string((std::istreambuf_iterator<char>(stream)),
                                std::istreambuf_iterator<char>()));
  return 1;
}

}  // namespace

int OpenTerminal(lua_State* state) {
  lua_newtable(state);
  SetFunctions(state, {{"read_line", ReadLine}, {"read_library", ReadLibrary}});
  return 1;
}

}  // namespace lockstep::lua
