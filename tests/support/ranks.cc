#include "tests/support/ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

extern char** environ;

namespace lockstep::tests {
namespace {

// Set in the ranks that OnRanks starts, to the test's name.
constexpr char kTestOfRanks[] = "LOCKSTEP_TEST_OF_RANKS";

[[noreturn]] void Abort(const std::string& message) {
  std::fprintf(stderr, "tests/ranks: %s: %s\n", message.c_str(), std::strerror(errno));
  std::abort();
}

// A child is no rank of what started the test, and no GoogleTest writes to the test's own report.
bool IsPassedOn(const std::string& variable) {
  for (const char* prefix :
       {"RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=", "MASTER_PORT=",
        "TORCHELASTIC_", "SLURM_", "LOCKSTEP_LAUNCHER=", "BUILD_WORKING_DIRECTORY=", "GTEST_",
        "XML_OUTPUT_FILE=", "TEST_PREMATURE_EXIT_FILE=", "TEST_SHARD",
        "TEST_TOTAL_SHARDS=", "TESTBRIDGE_TEST_ONLY="}) {
    if (absl::StartsWith(variable, prefix)) return false;
  }
  return true;
}

std::vector<std::string> EnvironmentOf(const Command& command) {
  Variables added = {{"OMP_NUM_THREADS", "1"}};
  for (const auto& [name, value] : command.environment) added[name] = value;
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string inherited = *variable;
    const bool is_replaced = added.count(inherited.substr(0, inherited.find('='))) > 0;
    if (IsPassedOn(inherited) && !is_replaced) variables.push_back(inherited);
  }
  for (const auto& [name, value] : added) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe NewPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) Abort("pipe2");
  return {ends[0], ends[1]};
}

// By its number: the header of glibc 2.36 declares pidfd_open as a C++ function.
int OpenProcess(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

void CloseFd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// In the child, between fork and exec: nothing but system calls. By fork, since posix_spawn cannot
// ask for a signal at the parent's death.
[[noreturn]] void Exec(const char* folder, char* const* argv, char* const* envp, int in, int out,
                       int err, int problem) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  if (setpgid(0, 0) == 0 && sigprocmask(SIG_SETMASK, &none, nullptr) == 0 &&
      (*folder == '\0' || chdir(folder) == 0) && dup2(in, STDIN_FILENO) >= 0 &&
      dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0) {
    execve(argv[0], argv, envp);
  }
  const int error = errno;
  if (write(problem, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

int ExitCode(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

// --- One process ---------------------------------------------------------------------------------

Child::Child(const Command& command) : deadline_(command.timeout) {
  std::vector<std::string> arguments = command.argv;
  std::vector<std::string> variables = EnvironmentOf(command);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  name_ = arguments.at(0);
  Pipe in = NewPipe();
  Pipe out = NewPipe();
  Pipe err = NewPipe();
  Pipe problem = NewPipe();
  const ssize_t size = static_cast<ssize_t>(command.input.size());
  if (write(in.write_end, command.input.data(), command.input.size()) != size)
    Abort("write to stdin");

  pid_ = fork();
  if (pid_ < 0) Abort("fork");
  if (pid_ == 0) {
    Exec(command.folder.c_str(), argv.data(), envp.data(), in.read_end, out.write_end,
         err.write_end, problem.write_end);
  }
  for (int* fd :
       {&in.read_end, &in.write_end, &out.write_end, &err.write_end, &problem.write_end}) {
    CloseFd(*fd);
  }
  int error = 0;
  if (read(problem.read_end, &error, sizeof(error)) > 0) {
    ADD_FAILURE() << "cannot run " << name_ << " in \"" << command.folder
                  << "\": " << std::strerror(error);
  }
  CloseFd(problem.read_end);
  pid_fd_ = OpenProcess(pid_);
  if (pid_fd_ < 0) Abort("pidfd_open");
  out_fd_ = out.read_end;
  err_fd_ = err.read_end;
  for (const int fd : {out_fd_, err_fd_}) fcntl(fd, F_SETFL, O_NONBLOCK);
}

Child::Child(Child&& other) noexcept
    : name_(std::move(other.name_)),
      deadline_(other.deadline_),
      pid_(std::exchange(other.pid_, -1)),
      pid_fd_(std::exchange(other.pid_fd_, -1)),
      out_fd_(std::exchange(other.out_fd_, -1)),
      err_fd_(std::exchange(other.err_fd_, -1)),
      state_(std::exchange(other.state_, State::kEnded)),
      ended_(std::move(other.ended_)) {}

Child::~Child() {
  if (pid_ > 0 && pid_fd_ >= 0) KillGroup();
  for (int* fd : {&pid_fd_, &out_fd_, &err_fd_}) CloseFd(*fd);
}

void Child::Read(int& fd, std::string& text) {
  char buffer[65536];
  while (fd >= 0) {
    const ssize_t size = read(fd, buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return;  // nothing more for now
    if (size == 0) return CloseFd(fd);
    text.append(buffer, static_cast<size_t>(size));
  }
}

// Kills the whole group and reaps its leader. Keeps the output so far.
void Child::KillGroup() {
  kill(-pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  CloseFd(pid_fd_);
  ended_.exit_code = ExitCode(status);
  Read(out_fd_, ended_.out);
  Read(err_fd_, ended_.err);
}

void Child::CheckForEnd() {
  if (state_ != State::kRunning) return;
  Read(out_fd_, ended_.out);
  Read(err_fd_, ended_.err);
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    // The leader is a zombie still: the group's number is its own.
    state_ = State::kEnded;
    KillGroup();
  } else if (deadline_.has_passed()) {
    state_ = State::kTimedOut;
    KillGroup();
  }
}

// Blocks until one of the children prints, ends, or is out of time.
void Child::Poll(const std::vector<Child*>& children) {
  std::vector<pollfd> fds;
  Deadline deadline(absl::InfiniteDuration());
  for (Child* child : children) {
    if (child->state_ != State::kRunning) continue;
    deadline = std::min(deadline, child->deadline_);
    for (const int fd : {child->pid_fd_, child->out_fd_, child->err_fd_}) {
      if (fd >= 0) fds.push_back({fd, POLLIN, 0});
    }
  }
  if (!fds.empty()) poll(fds.data(), fds.size(), deadline.MillisecondsLeft());
  for (Child* child : children) child->CheckForEnd();
}

std::string Child::Describe() const {
  return absl::StrCat("stdout:\n", ended_.out, "\nstderr:\n", ended_.err);
}

std::string Child::WaitForLine(const std::string& text) {
  for (;;) {
    size_t begin = 0;
    for (size_t end; (end = ended_.out.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = ended_.out.substr(begin, end - begin);
      if (absl::StrContains(line, text)) return line;
    }
    if (state_ != State::kRunning) break;
    Poll({this});
  }
  ADD_FAILURE() << name_ << (state_ == State::kEnded ? " ended" : " was killed by the watchdog")
                << " before it printed a line with \"" << text << "\"; " << Describe();
  return "";
}

void Child::Send(int signal) {
  if (pid_fd_ >= 0) kill(pid_, signal);
}

void Child::CloseOutput() {
  CloseFd(out_fd_);
  CloseFd(err_fd_);
}

Ended Child::Wait() {
  while (state_ == State::kRunning) Poll({this});
  if (state_ == State::kTimedOut)
    ADD_FAILURE() << name_ << " was killed by the watchdog; " << Describe();
  return ended_;
}

Ended RunOne(const Command& command) { return Child(command).Wait(); }

std::vector<Ended> WaitForAll(std::vector<Child>& children, const std::vector<std::string>& names) {
  std::vector<Child*> all;
  for (Child& child : children) all.push_back(&child);
  const auto is_running = [](const Child* child) {
    return child->state_ == Child::State::kRunning;
  };
  while (std::any_of(all.begin(), all.end(), is_running)) Child::Poll(all);

  std::vector<Ended> ended;
  std::string late;
  for (size_t i = 0; i < children.size(); ++i) {
    const bool timed_out = children[i].state_ == Child::State::kTimedOut;
    if (timed_out) absl::StrAppend(&late, late.empty() ? "" : ", ", names.at(i));
    ended.push_back(children[i].ended_);
  }
  if (late.empty()) return ended;
  std::string message = absl::StrCat("killed by the watchdog: ", late);
  for (size_t i = 0; i < children.size(); ++i) {
    absl::StrAppend(&message, "\n--- ", names.at(i), ", exit code ", ended[i].exit_code, ", ",
                    children[i].Describe());
  }
  ADD_FAILURE() << message;
  return ended;
}

bool WaitUntilGone(pid_t pid, absl::Duration timeout) {
  int fd = OpenProcess(pid);
  if (fd < 0) return errno == ESRCH;
  pollfd end = {fd, POLLIN, 0};
  const int num_ready = poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  CloseFd(fd);
  return num_ready == 1;
}

// --- Ranks ---------------------------------------------------------------------------------------

ReservedPort::ReservedPort() {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // Bound, but not listening: another socket with SO_REUSEADDR may listen there, and the kernel
  // chooses the port for no other process.
  const int on = 1;
  setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Abort("cannot reserve a port");
  }
  number_ = ntohs(address.sin_port);
}

ReservedPort::~ReservedPort() { CloseFd(fd_); }

Variables TorchrunEnvironment(int rank, int num_ranks, uint16_t port) {
  return {{"RANK", absl::StrCat(rank)},       {"WORLD_SIZE", absl::StrCat(num_ranks)},
          {"LOCAL_RANK", absl::StrCat(rank)}, {"LOCAL_WORLD_SIZE", absl::StrCat(num_ranks)},
          {"MASTER_ADDR", "127.0.0.1"},       {"MASTER_PORT", absl::StrCat(port)}};
}

std::vector<Child> StartRanks(int num_ranks, const Command& command, const ReservedPort& port,
                              const RankEnvironment& environment) {
  std::vector<Child> children;
  children.reserve(static_cast<size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    Command own = command;
    for (const auto& [name, value] : environment(rank, num_ranks, port.number())) {
      own.environment[name] = value;
    }
    children.emplace_back(own);
  }
  return children;
}

std::vector<Ended> RunRanks(int num_ranks, const Command& command,
                            const RankEnvironment& environment) {
  const ReservedPort port;
  std::vector<Child> children = StartRanks(num_ranks, command, port, environment);
  std::vector<std::string> names;
  for (int rank = 0; rank < num_ranks; ++rank) names.push_back(absl::StrCat("rank ", rank));
  return WaitForAll(children, names);
}

std::optional<Rank> OnRanks(int num_ranks, absl::Duration timeout) {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = absl::StrCat(test->test_suite_name(), ".", test->name());
  const char* test_of_ranks = std::getenv(kTestOfRanks);
  if (test_of_ranks != nullptr && name == test_of_ranks) {
    // As the driver does: Gloo may still write to a rank that has ended.
    signal(SIGPIPE, SIG_IGN);
    return Rank{std::atoi(std::getenv("RANK")), std::atoi(std::getenv("WORLD_SIZE"))};
  }
  const std::vector<Ended> ranks =
      RunRanks(num_ranks, {.argv = {"/proc/self/exe", absl::StrCat("--gtest_filter=", name),
                                    "--gtest_also_run_disabled_tests"},
                           .environment = {{kTestOfRanks, name}},
                           .timeout = timeout});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool passed = absl::StrContains(ranks[rank].out, "[  PASSED  ] 1 test.");
    if (ranks[rank].exit_code == 0 && passed) continue;
    ADD_FAILURE() << "rank " << rank << " of " << num_ranks << " ended with exit code "
                  << ranks[rank].exit_code << " and printed:\n"
                  << ranks[rank].out << ranks[rank].err;
  }
  return std::nullopt;
}

}  // namespace lockstep::tests
