#include "driver/lua/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/lua/stack.h"
#include "driver/lua/tensor.h"
#include "driver/lua/vm.h"
#include "driver/new_file.h"

namespace lockstep::lua {
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

// list(folder) -> names of what it holds, sorted; none where it is not there.
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

// remove(path): a file, or a folder with all in it; nothing where it is not there.
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

// --- Locks
// ---------------------------------------------------------------------------------------

// "process 4711 on node3"
std::string DescribeProcess() {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  return absl::StrCat("process ", getpid(), " on ", host);
}

// What the holder of a lock wrote of itself; "" where it has not come to that.
std::string ReadHolder(int file) {
  char text[HOST_NAME_MAX + 64];
  const ssize_t size = pread(file, text, sizeof(text), 0);
  const std::string holder(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return holder.substr(0, holder.find('\n'));
}

// lock(folder) -> true where this process has the folder for itself, as long as it lives; false and
// who has it; or nil and why it cannot be locked. The lock is flock's, on `folder`/run.lock: it
// goes with the process that holds it, however that ends, and the file stays.
int Lock(lua_State* state) {
  static auto* const locked = new std::set<std::string>();  // a second flock would wait for our own
  const std::string folder = ReadString(state, 1, "lock: folder");
  const std::string path = fs::weakly_canonical(folder).string() + "/run.lock";
  if (locked->count(path) > 0) {
    lua_pushboolean(state, 1);
    return 1;
  }
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  const int error = file < 0 || flock(file, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
  if (error == 0) {
    const std::string own = DescribeProcess() + "\n";
    // Where the disk is full the lock holds all the same, without a name.
    if (ftruncate(file, 0) == 0) std::ignore = pwrite(file, own.data(), own.size(), 0);
    locked->insert(path);  // the file stays open
    lua_pushboolean(state, 1);
    return 1;
  }
  const bool is_held = error == EWOULDBLOCK;
  const std::string text = is_held ? ReadHolder(file) : std::strerror(error);
  if (file >= 0) close(file);
  if (is_held) {
    lua_pushboolean(state, 0);
  } else {
    lua_pushnil(state);
  }
  PushString(state, text);
  return 2;
}

}  // namespace

int OpenFiles(lua_State* state) {
  lua_newtable(state);
  SetFunctions(state, {{"list", List},
                       {"rename", Rename},
                       {"remove", Remove},
                       {"sync", Sync},
                       {"checksum", ChecksumOfFile},
                       {"checksum_of", ChecksumOfPieces},
                       {"why_unwritable", WhyUnwritable},
                       {"lock", Lock}});
  return 1;
}

}  // namespace lockstep::lua
