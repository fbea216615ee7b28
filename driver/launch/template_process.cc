#include "driver/launch/template_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

extern char** environ;

namespace lockstep::driver {
namespace {

constexpr char kVariable[] = "LOCKSTEP_TEMPLATE";
constexpr int kSocketFd = 3;
constexpr int kForkMilliseconds = 10000;
constexpr size_t kNumFds = 4;  // stdout, stderr, the shared one, and the texts

// The texts one behind the other, each with a zero byte: the number of arguments, the name of the
// variable, the arguments, the environment. In memory without a name, as an environment may be
// larger than a message.
int WriteTexts(const ForkedStart& start) {
  std::string texts = absl::StrCat(start.arguments.size()) + '\0' + start.shared_variable + '\0';
  for (const std::string& text : start.arguments) texts += text + '\0';
  for (const std::string& text : start.environment) texts += text + '\0';
  const int fd = memfd_create("lockstep-start", MFD_CLOEXEC);
  size_t done = 0;
  while (fd >= 0 && done < texts.size()) {
    const ssize_t written = write(fd, texts.data() + done, texts.size() - done);
    if (written < 0 && errno != EINTR) break;
    if (written > 0) done += static_cast<size_t>(written);
  }
  if (fd >= 0 && done == texts.size()) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

std::vector<std::string> ReadTexts(int fd) {
  struct stat status {};
  fstat(fd, &status);
  std::string texts(static_cast<size_t>(status.st_size), '\0');
  for (size_t done = 0; done < texts.size();) {
    const ssize_t size =
        pread(fd, texts.data() + done, texts.size() - done, static_cast<off_t>(done));
    if (size == 0 || (size < 0 && errno != EINTR)) break;
    if (size > 0) done += static_cast<size_t>(size);
  }
  std::vector<std::string> result;
  for (size_t at = 0; at < texts.size(); at += result.back().size() + 1)
    result.emplace_back(texts.c_str() + at);
  return result;
}

union Ancillary {
  cmsghdr header;
  char bytes[CMSG_SPACE(kNumFds * sizeof(int))];
};

bool SendFds(int socket, const int (&fds)[kNumFds]) {
  char byte = 1;
  iovec data{&byte, 1};
  Ancillary ancillary{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = &ancillary;
  message.msg_controllen = sizeof(ancillary);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(fds));
  std::memcpy(CMSG_DATA(header), fds, sizeof(fds));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

// Returns whether a request came: false if the launcher is gone.
bool ReceiveFds(int socket, int (&fds)[kNumFds]) {
  for (;;) {
    char byte = 0;
    iovec data{&byte, 1};
    Ancillary ancillary{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = &ancillary;
    message.msg_controllen = sizeof(ancillary);
    const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR) continue;
    const cmsghdr* header = size == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(fds))) return false;
    std::memcpy(fds, CMSG_DATA(header), sizeof(fds));
    return true;
  }
}

int NumThreads() {
  DIR* folder = opendir("/proc/self/task");
  int count = 0;
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder))
    count += entry->d_name[0] != '.' ? 1 : 0;
  if (folder != nullptr) closedir(folder);
  return count;
}

// In the new process: takes over what the launcher has sent. Returns the arguments.
std::vector<std::string> BecomeRank(const int (&fds)[kNumFds]) {
  std::vector<std::string> texts = ReadTexts(fds[3]);
  const size_t num_arguments = std::strtoul(texts[0].c_str(), nullptr, 10);
  const std::string variable = texts[1];
  clearenv();
  for (size_t i = 2 + num_arguments; i < texts.size(); ++i) putenv(strdup(texts[i].c_str()));
  dup2(fds[0], STDOUT_FILENO);
  dup2(fds[1], STDERR_FILENO);
  fcntl(fds[2], F_SETFD, 0);  // as one that a spawned process inherits
  setenv(variable.c_str(), absl::StrCat(fds[2]).c_str(), 1);
  for (const int fd : {fds[0], fds[1], fds[3]}) close(fd);
  return {texts.begin() + 2, texts.begin() + 2 + static_cast<ptrdiff_t>(num_arguments)};
}

// The process between the template and a rank. When it is gone the kernel gives the rank to the
// launcher, which has asked for that. Returns true in the rank.
bool ForkRank(int socket, pid_t launcher) {
  const pid_t rank = fork();
  if (rank != 0) {
    if (rank > 0) setpgid(rank, rank);
    const auto answer = static_cast<int64_t>(rank);
    if (send(socket, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer) && rank > 0)
      kill(rank, SIGKILL);
    _exit(0);
  }
  const pid_t between = getppid();
  while (getppid() == between && between != launcher) sched_yield();
  return true;
}

}  // namespace

TemplateProcess::~TemplateProcess() { End(); }

void TemplateProcess::End() {
  if (socket_ >= 0) close(socket_);
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_ = socket_ = -1;
}

void TemplateProcess::ReapAdopted(absl::FunctionRef<bool(pid_t)> is_own) {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid > 0 &&
         !is_own(info.si_pid)) {
    if (info.si_pid == pid_) {
      End();
    } else {
      waitpid(info.si_pid, nullptr, WNOHANG);
    }
    info.si_pid = 0;
  }
}

void TemplateProcess::Start() {
  if (pid_ > 0) return;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) return;
  // Ranks become this process's children when the one between has ended.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    for (const int socket : sockets) close(socket);
    return;
  }
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const int copy = fcntl(sockets[1], F_DUPFD_CLOEXEC, kSocketFd + 1);
  posix_spawn_file_actions_adddup2(&files, copy, kSocketFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  std::string variable = absl::StrCat(kVariable, "=", getpid());
  std::vector<char*> envp = {variable.data()};
  for (char** inherited = environ; *inherited != nullptr; ++inherited) envp.push_back(*inherited);
  envp.push_back(nullptr);
  char program[] = "lockstep";
  char* argv[] = {program, nullptr};
  if (posix_spawn(&pid_, "/proc/self/exe", &files, &attributes, argv, envp.data()) != 0) pid_ = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(copy);
  close(sockets[1]);
  socket_ = sockets[0];
  if (pid_ < 0) End();
}

pid_t TemplateProcess::Fork(const ForkedStart& start) {
  if (pid_ < 0) return -1;
  const int out = start.out >= 0 ? start.out : STDOUT_FILENO;
  const int err = start.err >= 0 ? start.err : STDERR_FILENO;
  const int texts = WriteTexts(start);
  const int fds[kNumFds] = {out, err, start.shared, texts};
  int64_t pid = -1;
  if (texts >= 0 && SendFds(socket_, fds)) {
    pollfd wait{socket_, POLLIN, 0};
    int count;
    do count = poll(&wait, 1, kForkMilliseconds);
    while (count < 0 && errno == EINTR);
    if (count != 1) shutdown(socket_, SHUT_RD);  // an answer that is not there yet fails
    ssize_t size;
    do size = recv(socket_, &pid, sizeof(pid), 0);
    while (size < 0 && errno == EINTR);
    if (size != sizeof(pid)) pid = -1;
  }
  if (texts >= 0) close(texts);
  if (pid < 0) End();
  return static_cast<pid_t>(pid);
}

std::optional<std::vector<std::string>> ServeAsTemplate() {
  const char* text = std::getenv(kVariable);
  int launcher = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &launcher)) return std::nullopt;
  unsetenv(kVariable);
  fcntl(kSocketFd, F_SETFD, FD_CLOEXEC);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(0);
  for (;;) {
    int fds[kNumFds];
    if (!ReceiveFds(kSocketFd, fds)) _exit(0);
    const pid_t between = NumThreads() == 1 ? fork() : -1;
    if (between == 0 && ForkRank(kSocketFd, launcher)) {
      close(kSocketFd);
      return BecomeRank(fds);
    }
    if (between < 0) {
      const int64_t refusal = -1;
      if (send(kSocketFd, &refusal, sizeof(refusal), MSG_NOSIGNAL) < 0) _exit(0);
    } else {
      waitpid(between, nullptr, 0);
    }
    for (const int fd : fds) close(fd);
  }
}

}  // namespace lockstep::driver
