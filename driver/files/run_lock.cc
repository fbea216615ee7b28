#include "driver/files/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

enum class Outcome { kTaken, kHeld, kImpossible };

struct Attempt {
  Outcome outcome = Outcome::kImpossible;
  int file = -1;  // open, and locked if taken
  std::string reason;
};

Attempt TryLock(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) return {Outcome::kTaken, file, ""};
  const int error = errno;
  return {error == EWOULDBLOCK ? Outcome::kHeld : Outcome::kImpossible, file, std::strerror(error)};
}

// Returns the first line of run.lock, which its holder wrote; "" if the holder has not come to it.
std::string ReadHolder(int file) {
  if (file < 0) return "";
  char text[HOST_NAME_MAX + 64];
  const ssize_t size = pread(file, text, sizeof(text), 0);
  const std::string holder(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return holder.substr(0, holder.find('\n'));
}

}  // namespace

std::string DescribeProcess() {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  return absl::StrCat("process ", getpid(), " on ", host);
}

absl::StatusOr<RunLock> LockRun(const std::string& folder) {
  static std::mutex mutex;
  static auto* const locked = new std::set<std::string>();  // a second flock would wait for ours
  const std::lock_guard<std::mutex> guard(mutex);
  const std::string path = std::filesystem::weakly_canonical(folder).string();
  if (locked->count(path) > 0) return RunLock{};

  const Attempt on_folder = TryLock(path, O_RDONLY | O_DIRECTORY);
  const Attempt on_file = TryLock(path + "/run.lock", O_RDWR | O_CREAT);
  const auto any = [&](Outcome outcome) {
    return on_folder.outcome == outcome || on_file.outcome == outcome;
  };
  if (any(Outcome::kTaken) && !any(Outcome::kHeld)) {
    const std::string own = DescribeProcess() + "\n";
    // On a full disk the lock holds all the same, without a name.
    if (on_file.outcome == Outcome::kTaken && ftruncate(on_file.file, 0) == 0)
      std::ignore = pwrite(on_file.file, own.data(), own.size(), 0);
    locked->insert(path);  // both stay open until the process ends
    return RunLock{};
  }
  RunLock lock;
  lock.is_held_by_another = any(Outcome::kHeld);
  // A new run.lock, in place of one that was deleted, is empty.
  if (lock.is_held_by_another) lock.holder = ReadHolder(on_file.file);
  for (const Attempt& attempt : {on_folder, on_file}) {
    if (attempt.file >= 0) close(attempt.file);
  }
  if (lock.is_held_by_another) return lock;
  return absl::UnavailableError(on_file.reason);
}

}  // namespace lockstep::driver
