#include "driver/lua/bind/program/files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/files/append_file.h"
#include "driver/files/new_file.h"
#include "driver/files/run_lock.h"
#include "driver/lua/torch/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<driver::AppendFile> = "append file";

namespace {

namespace fs = std::filesystem;

void Check(const absl::Status& status) {
  if (!status.ok()) throw Error(std::string(status.message()));
}

void Check(const std::error_code& error, const std::string& what) {
  if (error) throw Error(absl::StrCat("cannot ", what, ": ", error.message()));
}

int PushChecksum(lua_State* state, const driver::Checksum& checksum) {
  PushInteger(state, static_cast<int64_t>(checksum.bytes));
  PushString(state, absl::StrFormat("%08x", checksum.crc32));
  return 2;
}

// list(folder) -> sorted names in it; none if it does not exist.
int List(lua_State* state) {
  const std::string path = ReadString(state, 1, "list: folder");
  std::error_code error;
  std::vector<std::string> names;
  if (fs::exists(path, error)) {
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      names.push_back(it->path().filename().string());
  }
  Check(error, absl::StrCat("list ", path));
  std::sort(names.begin(), names.end());
  lua_createtable(state, static_cast<int>(names.size()), 0);
  for (size_t i = 0; i < names.size(); ++i) {
    PushString(state, names[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

int Rename(lua_State* state) {
  const std::string from = ReadString(state, 1, "rename: from");
  const std::string to = ReadString(state, 2, "rename: to");
  std::error_code error;
  fs::rename(from, to, error);
  Check(error, absl::StrCat("rename ", from, " to ", to));
  return 0;
}

// remove(path): a file, or a folder with its content; does nothing if it does not exist.
int Remove(lua_State* state) {
  const std::string path = ReadString(state, 1, "remove: path");
  std::error_code error;
  fs::remove_all(path, error);
  Check(error, absl::StrCat("remove ", path));
  return 0;
}

int Sync(lua_State* state) {
  Check(driver::SyncFolder(ReadString(state, 1, "sync: folder")));
  return 0;
}

// checksum(path) -> bytes, crc32: of the file.
int ChecksumOfFile(lua_State* state) {
  const auto checksum = driver::ChecksumOfFile(ReadString(state, 1, "checksum: path"));
  Check(checksum.status());
  return PushChecksum(state, *checksum);
}

// checksum_of({piece, ...}) -> bytes, crc32: of strings, and of tensors as the bytes they hold.
int ChecksumOfPieces(lua_State* state) {
  ReadTable(state, 1, "checksum_of: pieces");
  driver::Checksum checksum;
  for (int i = 1; i <= static_cast<int>(lua_objlen(state, 1)); ++i) {
    lua_rawgeti(state, 1, i);
    if (const at::Tensor* tensor = TensorAt(state, -1)) {
      const at::Tensor dense = tensor->cpu().contiguous().resolve_conj().resolve_neg();
      checksum.Add(dense.const_data_ptr(), dense.nbytes());
    } else {
      const std::string text = ReadString(state, -1, "checksum_of: a piece");
      checksum.Add(text.data(), text.size());
    }
    lua_pop(state, 1);
  }
  return PushChecksum(state, checksum);
}

// why_unwritable(path) -> text, or nil where nothing is in the way of a file there.
int WhyUnwritable(lua_State* state) {
  const fs::path path = ReadString(state, 1, "why_unwritable: path");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  std::string problem;
  if (!fs::is_directory(folder, error)) {
    problem = absl::StrCat("there is no folder ", folder.string());
  } else if (fs::is_directory(path, error)) {
    problem = "it is a folder";
  } else if (access((fs::exists(path, error) ? path : folder).c_str(), W_OK) != 0) {
    problem = std::strerror(errno);
  }
  if (problem.empty()) return 0;
  PushString(state, problem);
  return 1;
}

// lock(folder) -> true if this process now holds the lock; false and the holder's name; or nil and
// the reason why the folder cannot be locked. See driver/files/run_lock.h.
int Lock(lua_State* state) {
  const absl::StatusOr<driver::RunLock> lock =
      driver::LockRun(ReadString(state, 1, "lock: folder"));
  if (!lock.ok()) {
    lua_pushnil(state);
    PushString(state, std::string(lock.status().message()));
    return 2;
  }
  lua_pushboolean(state, !lock->is_held_by_another);
  PushString(state, lock->holder);
  return 2;
}

// append_file(path) -> a file that grows by whole records, or nil and the reason.
int OpenAppendFile(lua_State* state) {
  absl::StatusOr<driver::AppendFile> file =
      driver::AppendFile::Open(ReadString(state, 1, "append_file: path"));
  if (!file.ok()) {
    lua_pushnil(state);
    PushString(state, std::string(file.status().message()));
    return 2;
  }
  PushObject(state, *std::move(file));
  return 1;
}

// file:append(record) -> true, or nil and the reason why nothing of the record was written.
int Append(lua_State* state) {
  auto& file = ReadObject<driver::AppendFile>(state, 1, "append: file");
  const absl::Status status = file.Append(ReadString(state, 2, "append: record"));
  if (status.ok()) {
    lua_pushboolean(state, 1);
    return 1;
  }
  lua_pushnil(state);
  PushString(state, std::string(status.message()));
  return 2;
}

}  // namespace

int OpenFiles(lua_State* state) {
  RegisterObject<driver::AppendFile>(state, {{"append", Append}});
  lua_newtable(state);
  SetFunctions(state, {{"list", List},
                       {"rename", Rename},
                       {"remove", Remove},
                       {"sync", Sync},
                       {"checksum", ChecksumOfFile},
                       {"checksum_of", ChecksumOfPieces},
                       {"why_unwritable", WhyUnwritable},
                       {"lock", Lock},
                       {"append_file", OpenAppendFile}});
  return 1;
}

}  // namespace lockstep::lua
