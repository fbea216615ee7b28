#include "driver/lua/core.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/context.h"
#include "driver/lua/json.h"
#include "driver/lua/operators.h"
#include "driver/lua/stack.h"
#include "driver/lua/tensor.h"
#include "driver/lua/tensor_methods.h"
#include "driver/lua/torch.h"
#include "driver/lua/vm.h"

namespace lockstep::lua {
namespace {

using driver::GetContext;

// --- Errors -----------------------------------------------------------------------------------------

// raise(message): an error blamed on the script's line, however deep in the library it is noticed.
int Raise(lua_State* state) { throw Error(ReadString(state, 1, "raise: message")); }

// nearest(word, {words}): the word that was probably meant, or nil.
int NearestOf(lua_State* state) {
  ReadTable(state, 2, "nearest: words");
  std::vector<std::string> words;
  for (int i = 1; i <= static_cast<int>(lua_objlen(state, 2)); ++i) {
    lua_rawgeti(state, 2, i);
    words.push_back(ReadString(state, -1, "nearest: a word"));
    lua_pop(state, 1);
  }
  const std::string nearest = Nearest(ReadString(state, 1, "nearest: word"), words);
  if (nearest.empty()) return 0;
  PushString(state, nearest);
  return 1;
}

// --- Machine ----------------------------------------------------------------------------------------

// Seconds on a clock that never goes back.
int Now(lua_State* state) {
  lua_pushnumber(state, std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  return 1;
}

int ResidentBytes(lua_State* state) {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  PushInteger(state, resident * sysconf(_SC_PAGESIZE));
  return 1;
}

int TensorBytes(lua_State* state) {
  PushInteger(state, LiveTensorBytes());
  return 1;
}

// Columns of the terminal that stdout is, or nil where it is none.
int TerminalWidth(lua_State* state) {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0) return 0;
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  PushInteger(state, known ? size.ws_col : 80);
  return 1;
}

// --- Files ------------------------------------------------------------------------------------------

int MakeFolder(lua_State* state) {
  const std::string path = ReadString(state, 1, "make_folder: path");
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(absl::StrCat("cannot make the folder ", path, ": ", error.message()));
  return 0;
}

// read_file(path): all of a file, unpacked where it is gzipped.
int ReadFile(lua_State* state) {
  const std::string path = ReadString(state, 1, "read_file: path");
  std::string content;
  std::string problem;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw Error(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  std::vector<char> buffer(size_t{1} << 20);
  int size = 0;
  while ((size = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
    content.append(buffer.data(), static_cast<size_t>(size));
  }
  int code = Z_OK;
  const char* text = gzerror(file, &code);
  // A gzip file that ends too early reads as a shorter one: only zlib's own code tells.
  if (size < 0 || code == Z_BUF_ERROR) problem = code == Z_ERRNO ? std::strerror(errno) : text;
  gzclose(file);
  if (!problem.empty()) throw Error(absl::StrCat("cannot read ", path, ": ", problem));
  PushString(state, content);
  return 1;
}

// --- The run ----------------------------------------------------------------------------------------

int Script(lua_State* state) {
  PushString(state, GetContext(state).command_line.script);
  return 1;
}

int Arguments(lua_State* state) {
  const std::vector<std::string>& arguments = GetContext(state).command_line.script_arguments;
  lua_createtable(state, static_cast<int>(arguments.size()), 0);
  for (size_t i = 0; i < arguments.size(); ++i) {
    PushString(state, arguments[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// {{key, value}, ...} of --set, in order. Whoever asks has taken them.
int Settings(lua_State* state) {
  driver::Context& context = GetContext(state);
  context.settings_used = true;
  const auto& settings = context.command_line.settings;
  lua_createtable(state, static_cast<int>(settings.size()), 0);
  for (size_t i = 0; i < settings.size(); ++i) {
    lua_createtable(state, 2, 0);
    PushString(state, settings[i].first);
    lua_rawseti(state, -2, 1);
    PushString(state, settings[i].second);
    lua_rawseti(state, -2, 2);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

int RunDir(lua_State* state) {
  PushString(state, GetContext(state).run_dir);
  return 1;
}

// --- What is bound ----------------------------------------------------------------------------------

int PushStrings(lua_State* state, const std::vector<std::string>& strings) {
  lua_createtable(state, static_cast<int>(strings.size()), 0);
  for (size_t i = 0; i < strings.size(); ++i) {
    PushString(state, strings[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

int Operators(lua_State* state) { return PushStrings(state, OperatorNames()); }

int Schemas(lua_State* state) { return PushStrings(state, OperatorSchemas(ReadString(state, 1, "schemas: operator"))); }

int IsTensorMethod(lua_State* state) {
  const Operator* op = FindOperator(ReadString(state, 1, "is_tensor_method: operator"));
  lua_pushboolean(state, op != nullptr && IsMethod(*op));
  return 1;
}

int TensorMethods(lua_State* state) { return PushStrings(state, ExtraMethodNames()); }

int TensorFields(lua_State* state) { return PushStrings(state, FieldNames()); }

}  // namespace

int OpenCore(lua_State* state) {
  lua_newtable(state);
  SetFunctions(state, {{"raise", Raise},
                       {"nearest", NearestOf},
                       {"now", Now},
                       {"resident_bytes", ResidentBytes},
                       {"tensor_bytes", TensorBytes},
                       {"terminal_width", TerminalWidth},
                       {"make_folder", MakeFolder},
                       {"read_file", ReadFile},
                       {"json_encode", JsonEncode},
                       {"json_decode", JsonDecode},
                       {"script", Script},
                       {"arguments", Arguments},
                       {"settings", Settings},
                       {"run_dir", RunDir},
                       {"operators", Operators},
                       {"schemas", Schemas},
                       {"is_tensor_method", IsTensorMethod},
                       {"tensor_methods", TensorMethods},
                       {"tensor_fields", TensorFields}});
  lua_pushlightuserdata(state, nullptr);
  lua_setfield(state, -2, "null");
  return 1;
}

}  // namespace lockstep::lua
