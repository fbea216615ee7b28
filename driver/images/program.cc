#include "driver/images/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep::images {
namespace {

constexpr size_t kMaxErrorBytes = 16 << 10;

// Both ends of a pipe, closed with it.
struct Pipe {
  int ends[2] = {-1, -1};

  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    Close(0);
    Close(1);
  }

  bool Open() { return pipe2(ends, O_CLOEXEC) == 0; }
  void Close(int end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
};

// Starts the program with standard output and error on the pipes. Returns an errno value.
int Spawn(const std::vector<std::string>& arguments, const Pipe& out, const Pipe& err, pid_t* pid) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));  // posix_spawnp changes none
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err.ends[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  const int error = posix_spawnp(pid, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

// Reads both pipes until they end, or until `output.out` is larger than `max_bytes`.
void Collect(Pipe& out, Pipe& err, int64_t max_bytes, ProgramOutput& output) {
  std::vector<char> buffer(256 << 10);
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    pollfd ready[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    if (poll(ready, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    for (int i = 0; i < 2; ++i) {
      if (ready[i].revents == 0) continue;
      const ssize_t got = read(ready[i].fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        (i == 0 ? out : err).Close(0);
      } else if (i == 0) {
        output.out.append(buffer.data(), got);
        if (static_cast<int64_t>(output.out.size()) > max_bytes) return;
      } else {
        output.err.append(buffer.data(), std::min<size_t>(got, kMaxErrorBytes - output.err.size()));
      }
    }
  }
}

}  // namespace

absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& arguments,
                                         int64_t max_bytes) {
  if (arguments.empty()) return absl::InvalidArgumentError("there is no program to run");
  for (const std::string& argument : arguments) {
    if (argument.find('\0') != std::string::npos)
      return absl::InvalidArgumentError(
          absl::StrCat(arguments[0], ": an argument has a zero byte"));
  }
  Pipe out, err;
  if (!out.Open() || !err.Open())
    return absl::InternalError(absl::StrCat(arguments[0], ": no pipe: ", strerror(errno)));
  pid_t pid = -1;
  if (const int error = Spawn(arguments, out, err, &pid); error != 0) {
    if (error == ENOENT)
      return absl::NotFoundError(absl::StrCat("\"", arguments[0], "\" is not installed"));
    return absl::InternalError(
        absl::StrCat("\"", arguments[0], "\" cannot be started: ", strerror(error)));
  }
  out.Close(1);
  err.Close(1);
  ProgramOutput output;
  Collect(out, err, max_bytes, output);
  const bool too_large = static_cast<int64_t>(output.out.size()) > max_bytes;
  if (too_large) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (too_large) {
    return absl::ResourceExhaustedError(
        absl::StrCat("\"", arguments[0], "\" wrote more than ", max_bytes, " bytes"));
  }
  output.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return output;
}

}  // namespace lockstep::images
