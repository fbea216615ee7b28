// lockstep.core.files: work on files in the background.

#include "driver/lua/bind/program/file_job.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/files/file_job.h"
#include "driver/files/folder.h"
#include "driver/files/new_file.h"
#include "driver/lua/bind/program/copies.h"
#include "driver/lua/bind/program/safetensors.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"

namespace lockstep::lua {

// A job, and the checksums of the files that it writes, by step.
struct StartedJob {
  std::shared_ptr<driver::FileJob> job;
  std::shared_ptr<std::vector<std::optional<driver::Checksum>>> checksums;
};
template <>
inline constexpr const char* kObjectName<StartedJob> = "file job";

namespace {

absl::StatusOr<driver::Checksum> WriteText(const std::string& path, const std::string& text) {
  driver::NewFile file(path);
  absl::Status status = file.Write(text.data(), text.size());
  if (status.ok()) status = file.Keep();
  if (!status.ok()) return status;
  return file.checksum();
}

// Reads the step whose array is at the top of the stack. `written` is set when a file is written.
driver::FileJob::Step ReadStep(lua_State* state, std::optional<driver::Checksum>& written) {
  const int step = lua_gettop(state);
  ReadTable(state, step, "files.start: a step");
  luaL_checkstack(state, 4, "a step's values");
  for (int i = 1; i <= 4; ++i) lua_rawgeti(state, step, i);
  const std::string kind = ReadString(state, step + 1, "files.start: the kind of a step");
  driver::FileJob::Step result;
  if (kind == "copies") {
    result = [job = ReadCopies(state, step + 2)->job()] { return job.Wait(); };
    lua_settop(state, step);
    return result;
  }
  const std::string path = ReadString(state, step + 2, "files.start: the path of a step");
  const auto write = [&written](const auto& write_file) {
    absl::StatusOr<driver::Checksum> checksum = write_file();
    if (checksum.ok()) written = *checksum;
    return checksum.status();
  };
  if (kind == "tensors") {
    TensorFile file = ReadTensorFile(state, step + 2, "safetensors");
    result = [write, file = std::move(file)] { return write([&] { return file.Write(); }); };
  } else if (kind == "text") {
    result = [write, path, text = ReadString(state, step + 3, "files.start: text")] {
      return write([&] { return WriteText(path, text); });
    };
  } else if (kind == "sync") {
    result = [path] { return driver::SyncFolder(path); };
  } else if (kind == "rename") {
    result = [path, to = ReadString(state, step + 3, "files.start: the new name")] {
      return driver::Rename(path, to);
    };
  } else if (kind == "remove") {
    const std::vector<std::string> names =
        ReadStrings(state, step + 3, "files.start: names", "files.start: a name");
    result = [path, names] { return driver::RemoveFolder(path, names).status(); };
  } else {
    throw Error(absl::StrCat("files.start: there is no step \"", kind, "\""));
  }
  lua_settop(state, step);
  return result;
}

// Job:is_done() -> boolean
// Whether wait would return at once.
int IsDone(lua_State* state) {
  return PushBoolean(state, ReadObject<StartedJob>(state, 1, "job").job->is_done());
}

// Job:wait() -> ({bytes: integer, crc32: string}|false)[]
// Waits for the end. Returns for each step the length and checksum of the file that it wrote,
// otherwise false. Raises the error of the step that failed.
int Wait(lua_State* state) {
  const StartedJob started = ReadObject<StartedJob>(state, 1, "job");
  Check(started.job->Wait());
  return PushArray(state, *started.checksums, [&](const std::optional<driver::Checksum>& checksum) {
    if (!checksum.has_value()) return lua_pushboolean(state, 0);
    lua_createtable(state, 0, 2);
    PushInteger(state, static_cast<int64_t>(checksum->bytes));
    lua_setfield(state, -2, "bytes");
    PushString(state, absl::StrFormat("%08x", checksum->crc32));
    lua_setfield(state, -2, "crc32");
  });
}

}  // namespace

int StartFileJob(lua_State* state) {
  ReadTable(state, 1, "files.start: steps");
  const size_t count = lua_objlen(state, 1);
  auto checksums = std::make_shared<std::vector<std::optional<driver::Checksum>>>(count);
  std::vector<driver::FileJob::Step> steps;
  for (size_t i = 0; i < count; ++i) {
    lua_rawgeti(state, 1, static_cast<int>(i + 1));
    driver::FileJob::Step step = ReadStep(state, (*checksums)[i]);
    // The thread may outlive the Lua object.
    steps.emplace_back([checksums, step = std::move(step)] { return step(); });
    lua_pop(state, 1);
  }
  auto job = std::make_shared<driver::FileJob>(std::move(steps));
  return PushObject(state, StartedJob{std::move(job), std::move(checksums)});
}

void RegisterFileJob(lua_State* state) {
  RegisterObject<StartedJob>(state, {{"is_done", IsDone}, {"wait", Wait}});
}

}  // namespace lockstep::lua
