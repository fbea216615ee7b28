// lockstep.core.files: folders, and whether files are whole.

#include "driver/lua/bind/program/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/files/append_file.h"
#include "driver/files/folder.h"
#include "driver/files/new_file.h"
#include "driver/files/regular_file.h"
#include "driver/files/run_lock.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/program/file_job.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<driver::AppendFile> = "append file";

namespace {

namespace fs = std::filesystem;

void CheckCode(const std::error_code& error, const std::string& what) {
  if (error) throw Error(absl::StrCat("cannot ", what, ": ", error.message()));
}

int PushChecksum(lua_State* state, const driver::Checksum& checksum) {
  PushInteger(state, static_cast<int64_t>(checksum.bytes));
  PushString(state, absl::StrFormat("%08x", checksum.crc32));
  return 2;
}

// list(folder: string) -> string[]
// Sorted names in a folder; none if it does not exist.
int List(lua_State* state) {
  const std::string path = ReadString(state, 1, "files.list: folder");
  std::error_code error;
  std::vector<std::string> names;
  if (fs::exists(path, error)) {
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      names.push_back(it->path().filename().string());
  }
  CheckCode(error, absl::StrCat("list ", path));
  std::sort(names.begin(), names.end());
  return PushStrings(state, names);
}

// rename(from: string, to: string)
int Rename(lua_State* state) {
  const std::string from = ReadString(state, 1, "rename: from");
  const std::string to = ReadString(state, 2, "rename: to");
  Check(driver::Rename(from, to));
  return 0;
}

// remove(path: string)
// Removes a file, a link or an empty folder; does nothing if it does not exist.
int Remove(lua_State* state) {
  const std::string path = ReadString(state, 1, "remove: path");
  std::error_code error;
  fs::remove(path, error);
  CheckCode(error, absl::StrCat("remove ", path));
  return 0;
}

// remove_folder(path: string, names: string[]) -> is_gone: boolean
// Removes these files of a folder, and the folder if that was all. If the path is a link, removes
// the link alone.
int RemoveFolder(lua_State* state) {
  const std::string path = ReadString(state, 1, "remove_folder: path");
  const std::vector<std::string> names =
      ReadStrings(state, 2, "remove_folder: names", "remove_folder: a name");
  return PushBoolean(state, ValueOrThrow(driver::RemoveFolder(path, names)));
}

// temporary_folder(prefix: string) -> path: string
// Makes a new folder whose name begins with `prefix`, which no other process has.
int TemporaryFolder(lua_State* state) {
  const std::string prefix = ReadString(state, 1, "temporary_folder: prefix");
  std::random_device random;
  std::string path;
  do {
    path = absl::StrCat(prefix, absl::Hex(random(), absl::kZeroPad8));
    if (mkdir(path.c_str(), 0777) == 0) {
      return PushString(state, path);
    }
  } while (errno == EEXIST);
  throw Error(absl::StrCat("cannot make the folder ", path, ": ", std::strerror(errno)));
}

// sync(folder: string)
// Brings the names in a folder to the disk.
int Sync(lua_State* state) {
  Check(driver::SyncFolder(ReadString(state, 1, "sync: folder")));
  return 0;
}

// checksum(path: string) -> bytes: integer, crc32: string
// A file's length, and its CRC-32 as in zlib and gzip, in eight hexadecimal digits.
int ChecksumOfFile(lua_State* state) {
  return PushChecksum(
      state, ValueOrThrow(driver::ChecksumOfFile(ReadString(state, 1, "files.checksum: path"))));
}

// kind(path: string) -> "file"|"folder"|"pipe"|"other"|nil
// Returns the type of what the path leads to, or nil if nothing is there. Does not open it.
int Kind(lua_State* state) {
  std::error_code error;
  const fs::file_status status = fs::status(ReadString(state, 1, "files.kind: path"), error);
  if (!fs::exists(status)) return 0;
  return PushString(state, fs::is_regular_file(status) ? "file"
                           : fs::is_directory(status)  ? "folder"
                           : fs::is_fifo(status)       ? "pipe"
                                                       : "other");
}

// Pushes nil and the reason, which begins with `prefix`.
int PushFailure(lua_State* state, const absl::Status& status, const std::string& prefix = "") {
  lua_pushnil(state);
  PushString(state, absl::StrCat(prefix, status.message()));
  return 2;
}

// size(path: string) -> integer?, reason: string?
// The length of a regular file in bytes; nil and the reason for anything else.
int Size(lua_State* state) {
  const std::string path = ReadString(state, 1, "size: path");
  const absl::StatusOr<driver::RegularFile> file = driver::RegularFile::Open(path);
  if (!file.ok()) return PushFailure(state, file.status(), path + ": ");
  return PushInteger(state, static_cast<int64_t>(file->bytes()));
}

// read(path: string) -> string?, reason: string?
// The content of a regular file of less than 2 GiB; nil and the reason for anything else. Never
// waits.
int Read(lua_State* state) {
  const std::string path = ReadString(state, 1, "files.read: path");
  const absl::StatusOr<std::string> text = driver::ReadRegularFile(path);
  if (!text.ok()) return PushFailure(state, text.status(), path + ": ");
  return PushString(state, *text);
}

// Calls use(data, size) with the bytes of each string and tensor of an array.
template <typename Use>
void ForEachPiece(lua_State* state, int index, const std::string& caller, const Use& use) {
  ReadTable(state, index, absl::StrCat(caller, ": pieces").c_str());
  ForEachElement(state, index, [&](int) {
    if (const at::Tensor* tensor = TensorAt(state, -1)) {
      const at::Tensor dense = tensor->cpu().contiguous().resolve_conj().resolve_neg();
      use(dense.const_data_ptr(), dense.nbytes());
    } else {
      const std::string text = ReadString(state, -1, absl::StrCat(caller, ": a piece").c_str());
      use(text.data(), text.size());
    }
  });
}

// checksum_of(pieces: (string|torch.Tensor)[]) -> bytes: integer, crc32: string
// The same of pieces one behind the other; tensors as the bytes they hold.
int ChecksumOfPieces(lua_State* state) {
  driver::Checksum checksum;
  ForEachPiece(state, 1, "checksum_of",
               [&](const void* data, size_t size) { checksum.Add(data, size); });
  return PushChecksum(state, checksum);
}

// why_unwritable(path: string) -> string?
// Why a file cannot be written, new or in place of another: nil where nothing is seen to be in the
// way.
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
  return PushString(state, problem);
}

// lock(folder: string) -> locked: boolean?, what: string?
// Locks a folder for this process until it ends. Returns true; false and the holder's name if
// another process has it; or nil and the reason if it cannot be locked. Leaves a file run.lock in
// the folder. See driver/files/run_lock.h.
int Lock(lua_State* state) {
  const absl::StatusOr<driver::RunLock> lock =
      driver::LockRun(ReadString(state, 1, "lock: folder"));
  if (!lock.ok()) return PushFailure(state, lock.status());
  lua_pushboolean(state, !lock->is_held_by_another);
  PushString(state, lock->holder);
  return 2;
}

// append_file(path: string) -> AppendFile?, reason: string?
// Opens a file that grows by whole records. Returns nil and the reason if it cannot be opened.
int OpenAppendFile(lua_State* state) {
  absl::StatusOr<driver::AppendFile> file =
      driver::AppendFile::Open(ReadString(state, 1, "append_file: path"));
  if (!file.ok()) return PushFailure(state, file.status());
  return PushObject(state, *std::move(file));
}

// AppendFile:append(record: string) -> written: boolean?, reason: string?
// Writes all of the record at the end of the file, or nothing. Returns true, or nil and the reason.
int Append(lua_State* state) {
  auto& file = ReadObject<driver::AppendFile>(state, 1, "append: file");
  const absl::Status status = file.Append(ReadString(state, 2, "append: record"));
  return status.ok() ? PushBoolean(state, true) : PushFailure(state, status);
}

}  // namespace

int WriteFile(lua_State* state) {
  driver::NewFile file(ReadString(state, 1, "files.write: path"));
  ForEachPiece(state, 2, "files.write",
               [&](const void* data, size_t size) { Check(file.Write(data, size)); });
  Check(file.Keep());
  return 0;
}

int OpenFiles(lua_State* state) {
  RegisterObject<driver::AppendFile>(state, {{"append", Append}});
  RegisterFileJob(state);
  lua_newtable(state);
  SetFunctions(state, {{"list", List},
                       {"rename", Rename},
                       {"remove", Remove},
                       {"remove_folder", RemoveFolder},
                       {"temporary_folder", TemporaryFolder},
                       {"start", StartFileJob},
                       {"sync", Sync},
                       {"kind", Kind},
                       {"size", Size},
                       {"read", Read},
                       {"checksum", ChecksumOfFile},
                       {"checksum_of", ChecksumOfPieces},
                       {"why_unwritable", WhyUnwritable},
                       {"lock", Lock},
                       {"append_file", OpenAppendFile}});
  return 1;
}

}  // namespace lockstep::lua
