#include "driver/keep/client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace lockstep::driver {
namespace {

constexpr int kReadyFd = 3;
constexpr int kStartMilliseconds = 10000;
constexpr int kListenRetries = 200;
constexpr int kListenMilliseconds = 10;

}  // namespace

absl::StatusOr<KeeperClient> KeeperClient::Connect(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  KeeperClient client(fd);
  sockaddr_un address;
  const socklen_t size = AddressOf(name, address);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0)
    return absl::NotFoundError(absl::StrCat("there is no keeper: ", std::strerror(errno)));
  if (!IsOwnUser(fd)) return absl::PermissionDeniedError("the keeper is another user's");
  const absl::StatusOr<Received> hello = client.Ask(Request::kHello, {}, -1);
  if (!hello.ok()) return hello.status();
  client.number_ = hello->packet.snapshot.bytes;
  client.newest_start_ = hello->packet.start;
  return client;
}

absl::StatusOr<KeeperClient> KeeperClient::Start(const std::string& program,
                                                 const std::string& name, int watch, int idle_s) {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  // Nothing of this process's output: its reader would wait for the keeper's end.
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // By a number above all others first: dup2 of a descriptor to itself would leave it to be closed.
  const int copy = fcntl(ready[1], F_DUPFD_CLOEXEC, kReadyFd + 1);
  posix_spawn_file_actions_adddup2(&files, copy, kReadyFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A session of its own: what ends this rank's process group leaves it alone.
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  std::vector<std::string> arguments = {
      program, absl::StrCat("--name=", name), absl::StrCat("--watch=", watch),
      absl::StrCat("--idle=", idle_s), absl::StrCat("--ready-fd=", kReadyFd)};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(ready[1]);
  close(copy);
  // Its byte, or its end because another process's keeper has the name.
  pollfd wait = {ready[0], POLLIN, 0};
  char byte = 0;
  const bool has_answer = error == 0 && poll(&wait, 1, kStartMilliseconds) == 1;
  if (has_answer && read(ready[0], &byte, 1) == 0) waitpid(pid, nullptr, 0);  // it is ending
  close(ready[0]);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot start ", program, ": ", std::strerror(error)));
  }
  // The keeper that has the name may not listen yet.
  absl::StatusOr<KeeperClient> client = Connect(name);
  for (int i = 0; i < kListenRetries && absl::IsNotFound(client.status()); ++i) {
    poll(nullptr, 0, kListenMilliseconds);
    client = Connect(name);
  }
  return client;
}

KeeperClient::KeeperClient(KeeperClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      number_(other.number_),
      newest_start_(other.newest_start_),
      start_(other.start_) {}

KeeperClient& KeeperClient::operator=(KeeperClient&& other) noexcept {
  std::swap(socket_, other.socket_);
  number_ = other.number_;
  newest_start_ = other.newest_start_;
  start_ = other.start_;
  return *this;
}

KeeperClient::~KeeperClient() {
  if (socket_ >= 0) close(socket_);
}

absl::StatusOr<Received> KeeperClient::Ask(Request request, const Snapshot& snapshot, int fd) {
  Packet packet;
  packet.request = request;
  packet.snapshot = snapshot;
  packet.start = start_;
  const bool is_sent = Send(socket_, packet, fd);
  const std::optional<Received> received = is_sent ? Receive(socket_) : std::nullopt;
  if (!received.has_value()) return absl::UnavailableError("the keeper is gone");
  if (received->packet.is_refused == 0) return *received;
  return absl::FailedPreconditionError(
      absl::StrCat("this process is of start ", start_,
                   " of the run, and a newer one uses the keeper of the snapshots in memory; "
                   "end this process"));
}

absl::Status KeeperClient::Begin(int64_t start) {
  start_ = start;
  return Ask(Request::kBegin, {}, -1).status();
}

absl::Status KeeperClient::Put(const Snapshot& snapshot, int fd) {
  const absl::StatusOr<Received> answer = Ask(Request::kPut, snapshot, fd);
  if (!answer.ok()) return answer.status();
  return answer->packet.is_found != 0
             ? absl::OkStatus()
             : absl::ResourceExhaustedError("the keeper has too many files open");
}

absl::Status KeeperClient::Drop(int owner, int64_t step) {
  Snapshot snapshot;
  snapshot.owner = owner;
  snapshot.step = step;
  return Ask(Request::kDrop, snapshot, -1).status();
}

absl::StatusOr<std::vector<Snapshot>> KeeperClient::List() {
  const absl::StatusOr<Received> count = Ask(Request::kCount, {}, -1);
  if (!count.ok()) return count.status();
  std::vector<Snapshot> snapshots;
  for (uint64_t i = 0; i < count->packet.snapshot.bytes; ++i) {
    Snapshot at;
    at.bytes = i;
    const absl::StatusOr<Received> one = Ask(Request::kAt, at, -1);
    if (!one.ok()) return one.status();
    if (one->packet.is_found != 0) snapshots.push_back(one->packet.snapshot);
  }
  return snapshots;
}

absl::StatusOr<int> KeeperClient::Get(int owner, int64_t step) {
  Snapshot asked;
  asked.owner = owner;
  asked.step = step;
  const absl::StatusOr<Received> answer = Ask(Request::kGet, asked, -1);
  if (!answer.ok()) return answer.status();
  if (answer->fd >= 0) return answer->fd;
  return absl::NotFoundError(
      absl::StrCat("the keeper has no snapshot of rank ", owner, " after ", step, " steps"));
}

}  // namespace lockstep::driver
