// lockstep.core: facts about the program and the machine.

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "driver/files/gzip_reader.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/program/files.h"
#include "driver/lua/bind/program/json.h"
#include "driver/lua/bind/torch/tensor_methods.h"
#include "driver/lua/operators/operators.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "driver/ranks/failure.h"
#include "driver/ranks/step_board.h"

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

// raise(message: string)
// Raises an error that is blamed on the script's line, however deep in the library it is noticed.
int Raise(lua_State* state) { throw Error(ReadString(state, 1, "raise: message")); }

// raise_usage(message: string)
// Raises an error of the command line: an uncaught one ends the run with exit code 2.
int RaiseUsage(lua_State* state) {
  GetContext(state).usage_error = ReadString(state, 1, "raise_usage: message");
  throw Error(GetContext(state).usage_error);
}

// nearest(word: string, words: string[]) -> string?
// The word that was probably meant, or nil.
int NearestOf(lua_State* state) {
  const std::vector<std::string> words = ReadStrings(state, 2, "nearest: words", "nearest: a word");
  const std::string nearest = Nearest(ReadString(state, 1, "nearest: word"), words);
  if (nearest.empty()) return 0;
  return PushString(state, nearest);
}

// --- Machine -------------------------------------------------------------------------------------

// now() -> number
// Seconds on a clock that never goes back.
int Now(lua_State* state) {
  return PushNumber(
      state,
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// resident_bytes() -> integer
// The process's share of the machine's memory.
int ResidentBytes(lua_State* state) {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return PushInteger(state, resident * sysconf(_SC_PAGESIZE));
}

// tensor_bytes() -> integer
// Bytes of the tensors that Lua values hold.
int TensorBytes(lua_State* state) { return PushInteger(state, LiveTensorBytes()); }

// terminal_width() -> integer?
// Columns of the terminal on stdout, or nil without a terminal.
int TerminalWidth(lua_State* state) {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0) return 0;
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return PushInteger(state, known ? size.ws_col : 80);
}

// --- Files ---------------------------------------------------------------------------------------

// make_folder(path: string)
// Makes the folder and those above it, where they are not there.
int MakeFolder(lua_State* state) {
  const std::string path = ReadString(state, 1, "files.make_folder: path");
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
  Check(size.status());
  return *size > 0;
}

// Lines:next() -> string?
// The next line without its end, or nil after the last.
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
    return PushString(state, line);
  }
}

// open_lines(path: string) -> Lines
// Opens a text file, unpacked on the way where it is gzipped.
int OpenLines(lua_State* state) {
  const std::string path = ReadString(state, 1, "open_lines: path");
  return PushObject(state, LineReader{ValueOrThrow(driver::GzipReader::Open(path)), "", 0});
}

// --- The run -------------------------------------------------------------------------------------

// script() -> string
// The path of the script, as it was given.
int Script(lua_State* state) { return PushString(state, GetContext(state).command_line.script); }

// arguments() -> string[]
// The arguments after the script on the command line.
int Arguments(lua_State* state) {
  return PushStrings(state, GetContext(state).command_line.script_arguments);
}

// settings() -> string[][]
// The pairs of --set, in order. The caller has used them. result: {{key, value}, ...}.
int Settings(lua_State* state) {
  driver::Context& context = GetContext(state);
  context.settings_used = true;
  return PushArray(state, context.command_line.settings, [&](const auto& setting) {
    PushStrings(state, {setting.first, setting.second});
  });
}

// run_dir() -> string
// The run's folder, which may not be there yet.
int RunDir(lua_State* state) { return PushString(state, GetContext(state).run_dir); }

int ReturnStrings(lua_State* state, const std::vector<std::string>& strings) {
  return PushStrings(state, strings);
}

// operators() -> string[]
// The names of all of ATen's operators, sorted.
int Operators(lua_State* state) { return ReturnStrings(state, OperatorNames()); }

// schemas(operator: string) -> string[]
// The schemas of one: "torch.relu(Tensor self) -> Tensor".
int Schemas(lua_State* state) {
  return ReturnStrings(state, OperatorSchemas(ReadString(state, 1, "schemas: operator")));
}

// is_tensor_method(operator: string) -> boolean
// Whether x:<operator>() makes sense.
int IsTensorMethod(lua_State* state) {
  const Operator* op = FindOperator(ReadString(state, 1, "is_tensor_method: operator"));
  return PushBoolean(state, op != nullptr && IsMethod(*op));
}

// set_step(step: integer)
// For the report of a hang, and for the launcher: which step this rank is at.
int SetStep(lua_State* state) {
  const int64_t step = ReadInteger(state, 1, "set_step: step");
  GetContext(state).world.activity->SetStep(step);
  driver::NoteStep(step);
  return 0;
}

// evict_slow() -> number?
// The number of --evict-slow.
int EvictSlow(lua_State* state) {
  const std::optional<double> factor = GetContext(state).command_line.evict_slow;
  if (!factor.has_value()) return 0;
  return PushNumber(state, *factor);
}

// verify_every() -> integer?
// The number of --verify-every.
int VerifyEvery(lua_State* state) {
  const std::optional<int> steps = GetContext(state).command_line.verify_every;
  if (!steps.has_value()) return 0;
  return PushInteger(state, *steps);
}

// restarts() -> integer
// How often the run's launcher has started it again after a failure.
int Restarts(lua_State* state) {
  return PushInteger(state, GetContext(state).world.environment.attempt);
}

// alone(seconds: integer?, fn: function, ...: any) -> ...: any
// Returns fn(...). Other ranks may wait for this one meanwhile, for so many seconds at most,
// without `seconds` for ever. See run.alone.
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

// tensor_methods() -> string[]
// Methods of tensors that are no operators.
int TensorMethods(lua_State* state) { return ReturnStrings(state, ExtraMethodNames()); }

// tensor_fields() -> string[]
// Fields of tensors.
int TensorFields(lua_State* state) { return ReturnStrings(state, FieldNames()); }

}  // namespace

int OpenCore(lua_State* state) {
  RegisterObject<LineReader>(state, {{"next", NextLine}});
  lua_newtable(state);
  SetFunctions(state, {{"raise", Raise},
                       {"raise_usage", RaiseUsage},
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
                       {"evict_slow", EvictSlow},
                       {"verify_every", VerifyEvery},
                       {"settings", Settings},
                       {"run_dir", RunDir},
                       {"set_step", SetStep},
                       {"restarts", Restarts},
                       {"alone", Alone},
                       {"operators", Operators},
                       {"schemas", Schemas},
                       {"is_tensor_method", IsTensorMethod},
                       {"tensor_methods", TensorMethods},
                       {"tensor_fields", TensorFields}});
  lua_pushlightuserdata(state, nullptr);
  lua_setfield(state, -2, "null");
  PushString(state, base::kVersion);
  lua_setfield(state, -2, "version");
  return 1;
}

}  // namespace lockstep::lua
