#include "driver/lua/bind/program/core.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "driver/files/gzip_reader.h"
#include "driver/files/new_file.h"
#include "driver/lua/bind/program/json.h"
#include "driver/lua/operators/operators.h"
#include "driver/lua/torch/tensor.h"
#include "driver/lua/torch/tensor_methods.h"
#include "driver/lua/torch/torch.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/context.h"
#include "driver/ranks/failure.h"

namespace lockstep::lua {

// A text file that is read line by line, unpacked on the way where it is gzipped.
struct LineReader {
  std::unique_ptr<driver::GzipReader> file;
  std::string block;  // what was read last
  size_t next = 0;    // where in it the next line starts
};
template <>
inline constexpr const char* kObjectName<LineReader> = "file of lines";

namespace {

using driver::GetContext;

// --- Errors --------------------------------------------------------------------------------------

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

// --- Machine -------------------------------------------------------------------------------------

// Seconds on a clock that never goes back.
int Now(lua_State* state) {
  lua_pushnumber(
      state,
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
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

// Returns the columns of the terminal on stdout, or nil without a terminal.
int TerminalWidth(lua_State* state) {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0) return 0;
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  PushInteger(state, known ? size.ws_col : 80);
  return 1;
}

// --- Files ---------------------------------------------------------------------------------------

int MakeFolder(lua_State* state) {
  const std::string path = ReadString(state, 1, "make_folder: path");
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(absl::StrCat("cannot make the folder ", path, ": ", error.message()));
  return 0;
}

// Reads the next block; false at the end of the file.
bool Refill(LineReader& reader) {
  constexpr size_t kBlockBytes = size_t{1} << 18;
  reader.block.resize(kBlockBytes);
  reader.next = 0;
  const absl::StatusOr<size_t> size = reader.file->Read(reader.block.data(), kBlockBytes);
  reader.block.resize(size.ok() ? *size : 0);
  if (!size.ok()) throw Error(std::string(size.status().message()));
  return *size > 0;
}

// lines:next(): the next line without its end, or nil after the last.
int NextLine(lua_State* state) {
  LineReader& reader = ReadObject<LineReader>(state, 1, "lines:next: lines");
  std::string line;
  bool any = false;
  for (;;) {
    const size_t end = reader.block.find('\n', reader.next);
    any = any || reader.next < reader.block.size();
    line.append(reader.block, reader.next, end == std::string::npos ? end : end - reader.next);
    reader.next = end == std::string::npos ? reader.block.size() : end + 1;
    if (end == std::string::npos && Refill(reader)) continue;
    if (!any) return 0;
    PushString(state, line);
    return 1;
  }
}

// open_lines(path) -> lines.
int OpenLines(lua_State* state) {
  const std::string path = ReadString(state, 1, "open_lines: path");
  auto file = driver::GzipReader::Open(path);
  if (!file.ok()) throw Error(std::string(file.status().message()));
  PushObject(state, LineReader{*std::move(file), "", 0});
  return 1;
}

// write_file(path, {piece, ...}): strings, and tensors as the bytes they hold.
int WriteFile(lua_State* state) {
  driver::NewFile file(ReadString(state, 1, "write_file: path"));
  const auto check = [](const absl::Status& status) {
    if (!status.ok()) throw Error(std::string(status.message()));
  };
  ReadTable(state, 2, "write_file: pieces");
  for (int i = 1; i <= static_cast<int>(lua_objlen(state, 2)); ++i) {
    lua_rawgeti(state, 2, i);
    if (const at::Tensor* tensor = TensorAt(state, -1)) {
      const at::Tensor dense = tensor->cpu().contiguous().resolve_conj().resolve_neg();
      check(file.Write(dense.const_data_ptr(), dense.nbytes()));
    } else {
      const std::string text = ReadString(state, -1, "write_file: a piece");
      check(file.Write(text.data(), text.size()));
    }
    lua_pop(state, 1);
  }
  check(file.Keep());
  return 0;
}

// --- The run -------------------------------------------------------------------------------------

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

// {{key, value}, ...} of --set, in order. The caller has used them.
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

// --- What is bound -------------------------------------------------------------------------------

int PushStrings(lua_State* state, const std::vector<std::string>& strings) {
  lua_createtable(state, static_cast<int>(strings.size()), 0);
  for (size_t i = 0; i < strings.size(); ++i) {
    PushString(state, strings[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

int Operators(lua_State* state) { return PushStrings(state, OperatorNames()); }

int Schemas(lua_State* state) {
  return PushStrings(state, OperatorSchemas(ReadString(state, 1, "schemas: operator")));
}

int IsTensorMethod(lua_State* state) {
  const Operator* op = FindOperator(ReadString(state, 1, "is_tensor_method: operator"));
  lua_pushboolean(state, op != nullptr && IsMethod(*op));
  return 1;
}

// set_step(step): for the report of a hang.
int SetStep(lua_State* state) {
  GetContext(state).world.activity->SetStep(ReadInteger(state, 1, "set_step: step"));
  return 0;
}

// alone(seconds or nil, fn, ...) -> fn's results: ranks that wait for this one do not end the run
// meanwhile, for so many seconds at most.
int Alone(lua_State* state) {
  std::chrono::seconds longest = driver::kNoTimeout;
  if (!lua_isnil(state, 1)) {
    longest = std::chrono::seconds(ReadInteger(state, 1, "alone: seconds"));
  }
  ReadFunction(state, 2, "run.alone: fn");
  const driver::WorkAlone alone(longest);
  Call(state, lua_gettop(state) - 2, LUA_MULTRET);
  return lua_gettop(state) - 1;
}

int TensorMethods(lua_State* state) { return PushStrings(state, ExtraMethodNames()); }

int TensorFields(lua_State* state) { return PushStrings(state, FieldNames()); }

}  // namespace

int OpenCore(lua_State* state) {
  RegisterObject<LineReader>(state, {{"next", NextLine}});
  lua_newtable(state);
  SetFunctions(state, {{"raise", Raise},
                       {"nearest", NearestOf},
                       {"now", Now},
                       {"resident_bytes", ResidentBytes},
                       {"tensor_bytes", TensorBytes},
                       {"terminal_width", TerminalWidth},
                       {"make_folder", MakeFolder},
                       {"open_lines", OpenLines},
                       {"write_file", WriteFile},
                       {"json_encode", JsonEncode},
                       {"json_decode", JsonDecode},
                       {"json_shapes", JsonShapes},
                       {"script", Script},
                       {"arguments", Arguments},
                       {"settings", Settings},
                       {"run_dir", RunDir},
                       {"set_step", SetStep},
                       {"alone", Alone},
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
