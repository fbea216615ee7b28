#include "driver/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "driver/files/append_file.h"
#include "driver/launch/rank_output.h"
#include "driver/launch/restarts.h"
#include "driver/launch/template_process.h"
#include "driver/network/printable.h"
#include "driver/ranks/failure.h"
#include "driver/ranks/signs_of_life.h"
#include "driver/ranks/step_board.h"
#include "driver/ranks/world.h"

extern char** environ;

namespace lockstep::driver {
namespace {

using Clock = std::chrono::steady_clock;

// A failing run ends like this: told at once, asked by SIGTERM, then made to by SIGKILL.
constexpr std::chrono::milliseconds kTimeToEndAlone(2000);
constexpr std::chrono::milliseconds kTimeToEndAfterHang(3000);  // they say what they were doing
// `timeout` signals its child and then its child's whole group: these are one request.
constexpr std::chrono::milliseconds kOneRequest(1000);
constexpr std::chrono::milliseconds kTimeToEndWhenAsked(2000);
// For the store's thread to read what ranks sent before they ended.
constexpr std::chrono::milliseconds kTimeToReadReports(100);
// The limit to write the output, once all ranks have ended, if its reader has stopped: after a
// failure, and after an interrupt. There is no limit after success.
constexpr std::chrono::milliseconds kTimeToReadFailure(5000);
constexpr std::chrono::milliseconds kTimeToReadInterrupt(1000);

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  bool killed_by_us = false;
  std::optional<int> wait_status;  // set when it has ended
};

std::string SignalName(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? absl::StrCat("signal ", number) : absl::StrCat("SIG", name);
}

int ExitCode(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string DescribeDeath(const RankProcess& process) {
  const int status = *process.wait_status;
  if (!WIFSIGNALED(status)) {
    return absl::StrCat("rank ", process.rank, " ended with exit code ", WEXITSTATUS(status),
                        " and gave no reason; what it printed last stands above");
  }
  std::string text = absl::StrCat("rank ", process.rank, " (process ", process.pid,
                                  ") was killed by ", SignalName(WTERMSIG(status)));
  if (WTERMSIG(status) == SIGKILL) {
    absl::StrAppend(&text, ": by somebody, or by the kernel when the machine ran out of memory");
  }
  return text;
}

// The signals to this process, and its output. Every start of the ranks uses the same: a signal
// that comes between two of them is not lost.
class Console {
 public:
  Console() {
    sigemptyset(&signals_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
    signal_fd_ = signalfd(-1, &signals_, SFD_NONBLOCK | SFD_CLOEXEC);
    TORCH_CHECK(signal_fd_ >= 0, "signalfd: ", std::strerror(errno));
    output_.emplace();  // its threads block the signals, too
  }

  const sigset_t& signals() const { return signals_; }
  RankOutput& output() { return *output_; }

  // Waits until a signal, output or `deadline`; output is forwarded.
  void Wait(const std::optional<Clock::time_point>& deadline) {
    std::vector<pollfd> fds = output_->PollFds();
    fds.push_back({signal_fd_, POLLIN, 0});
    int timeout_ms = -1;
    if (deadline.has_value()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now());
      timeout_ms = static_cast<int>(std::max<int64_t>(0, left.count() + 1));
    }
    poll(fds.data(), fds.size(), timeout_ms);
    output_->Forward();
  }

  // Returns the next signal, or nullopt if none waits.
  std::optional<int> NextSignal() const {
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

  // Waits until all output is written, until its reader has stopped for some time, or until a
  // signal ends the wait. Returns the exit code.
  int WaitForReaders(int code) {
    const bool is_interrupt = code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP;
    const auto patience = is_interrupt ? kTimeToReadInterrupt : kTimeToReadFailure;
    for (size_t before; (before = output_->unwritten()) > 0;) {
      const auto limit = code == 0 ? std::nullopt : std::make_optional(Clock::now() + patience);
      Wait(limit);
      for (std::optional<int> signal; (signal = NextSignal()).has_value();) {
        if (*signal != SIGCHLD) return code == 0 ? 128 + *signal : code;
      }
      if (limit.has_value() && Clock::now() >= *limit && output_->unwritten() == before) break;
    }
    return code;
  }

 private:
  sigset_t signals_;
  int signal_fd_ = -1;
  std::optional<RankOutput> output_;
};

// One start of the ranks, until all have ended.
class Launcher {
 public:
  // `ranks` forks those that are started again; nullptr: the run is never started again.
  Launcher(const CommandLine& command_line, int nproc, int num_restarts, Console& console,
           TemplateProcess* ranks)
      : command_line_(command_line),
        nproc_(nproc),
        num_restarts_(num_restarts),
        console_(console),
        template_(ranks),
        output_(console.output()),
        store_(HostStore(num_restarts)),
        board_(nproc),
        silence_(std::chrono::seconds(command_line.timeout_s.value_or(kDefaultTimeoutSeconds))) {}

  Attempt Run() {
    for (int rank = 0; rank < nproc_; ++rank) Start(rank);
    if (template_ != nullptr) template_->Start();
    for (std::vector<int> ranks; !(ranks = Running()).empty();) {
      // Until a rank has ended, all may be stopped: by a scheduler that lets them go on later.
      const bool is_ending = ranks.size() < processes_.size();
      if (is_ending && !deadline_.has_value()) LookForSilence(ranks);
      const bool looks_again = is_ending && !deadline_.has_value();
      console_.Wait(looks_again ? Clock::now() + silence_.between_looks() : deadline_);
      ReadSignals();
      Reap();
      EscalateStop();
    }
    output_.ForwardTheRest();
    Attempt attempt;
    attempt.exit_code = Conclude(attempt.cause);
    attempt.has_failed = attempt.exit_code != 0 && interrupted_by_ == 0 && !let_save_ &&
                         (has_failed_ || !KnownAgreedEnd(*store_.store).has_value());
    const RankProcess* culprit = mute_ != nullptr ? mute_ : first_failed_;
    if (culprit != nullptr) attempt.step = board_.step(culprit->rank);
    attempt.run_dir = KnownRunDir(*store_.store);
    return attempt;
  }

 private:
  // --- Starting ----------------------------------------------------------------------------------

  std::vector<std::string> Arguments() const {
    std::vector<std::string> arguments = {"lockstep"};
    if (!command_line_.run_dir.empty()) {
      arguments.insert(arguments.end(), {"--run-dir", command_line_.run_dir});
    }
    if (command_line_.timeout_s.has_value()) {
      arguments.insert(arguments.end(), {"--timeout", absl::StrCat(*command_line_.timeout_s)});
    }
    if (command_line_.evict_slow.has_value())
      arguments.push_back(absl::StrCat("--evict-slow=", *command_line_.evict_slow));
    if (command_line_.verify_every.has_value())
      arguments.push_back(absl::StrCat("--verify-every=", *command_line_.verify_every));
    if (command_line_.debug_collectives) arguments.push_back("--debug-collectives");
    for (const auto& [key, value] : command_line_.settings) {
      arguments.insert(arguments.end(), {"--set", absl::StrCat(key, "=", value)});
    }
    arguments.insert(arguments.end(), {"--", command_line_.script});
    arguments.insert(arguments.end(), command_line_.script_arguments.begin(),
                     command_line_.script_arguments.end());
    return arguments;
  }

  std::vector<std::string> Environment(int rank) const {
    std::vector<std::string> variables = {
        absl::StrCat("RANK=", rank),
        absl::StrCat("LOCAL_RANK=", rank),
        absl::StrCat("WORLD_SIZE=", nproc_),
        absl::StrCat("LOCAL_WORLD_SIZE=", nproc_),
        "MASTER_ADDR=127.0.0.1",
        absl::StrCat("MASTER_PORT=", store_.port),
        "TORCHELASTIC_USE_AGENT_STORE=True",
        absl::StrCat("TORCHELASTIC_RESTART_COUNT=", num_restarts_),
        absl::StrCat(StepBoard::kVariable, "=", board_.fd()),
        absl::StrCat(kLauncherVariable, "=", getpid()),
    };
    const size_t num_own = variables.size();
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string inherited = *variable;
      const std::string name = inherited.substr(0, inherited.find('=') + 1);
      bool replaced = false;
      for (size_t i = 0; i < num_own; ++i) replaced |= variables[i].rfind(name, 0) == 0;
      if (!replaced) variables.push_back(inherited);
    }
    return variables;
  }

  // Returns the process of a rank that the template forks, or -1.
  pid_t Fork(int rank, int out, int err) {
    if (template_ == nullptr || num_restarts_ == 0) return -1;
    std::vector<std::string> arguments = Arguments();
    arguments.erase(arguments.begin());
    return template_->Fork(
        {arguments, Environment(rank), out, err, board_.fd(), StepBoard::kVariable});
  }

  void Start(int rank) {
    const int out = output_.AddStream(rank, STDOUT_FILENO);
    const int err = output_.AddStream(rank, STDERR_FILENO);
    RankProcess process;
    process.rank = rank;
    process.pid = Fork(rank, out, err);
    const int error = process.pid < 0 ? Spawn(rank, out, err, process.pid) : 0;
    if (out >= 0) close(out);
    if (err >= 0) close(err);
    if (error != 0) {
      for (RankProcess& started : processes_) kill(-started.pid, SIGKILL);
      TORCH_CHECK(false, "cannot start rank ", rank, ": ", std::strerror(error));
    }
    processes_.push_back(process);
  }

  // By exec: threads of libtorch, which this process has, do not survive a fork.
  int Spawn(int rank, int out, int err, pid_t& pid) {
    std::vector<std::string> arguments = Arguments();
    std::vector<std::string> variables = Environment(rank);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);

    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (out >= 0) posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (err >= 0) posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    // A process group of its own: a Ctrl-C at the terminal reaches us alone, and what a rank starts
    // ends with it.
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &console_.signals());

    const int error =
        posix_spawn(&pid, "/proc/self/exe", &files, &attributes, argv.data(), envp.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
  }

  // --- Watching ----------------------------------------------------------------------------------

  std::vector<int> Running() const {
    std::vector<int> ranks;
    for (const RankProcess& process : processes_) {
      if (!process.wait_status.has_value()) ranks.push_back(process.rank);
    }
    return ranks;
  }

  // No rank waits in a collective any more for the last ones that run: this launcher does.
  void LookForSilence(const std::vector<int>& ranks) {
    const auto text = silence_.Look(*store_.store, ranks, Clock::now());
    if (text.has_value())
      BeginEnd({*text + ". What each rank was doing:", kHangExitCode, /*is_hang=*/true});
  }

  void ReadSignals() {
    for (std::optional<int> next; (next = console_.NextSignal()).has_value();) {
      const int signal = *next;
      if (signal == SIGCHLD) continue;
      // The ranks save their state and end; a second signal ends them at once.
      if (signal == SIGTERM && let_save_ && Clock::now() - let_save_since_ < kOneRequest) continue;
      if (signal == SIGTERM && !let_save_ && !deadline_.has_value() &&
          IsSavingAnnounced(*store_.store)) {
        let_save_ = true;
        let_save_since_ = Clock::now();
        for (const RankProcess& process : processes_) {
          if (!process.wait_status.has_value()) kill(process.pid, SIGTERM);
        }
        continue;
      }
      if (interrupted_by_ == 0) interrupted_by_ = signal;
      BeginEnd({absl::StrCat("the run was interrupted by ", SignalName(signal)), 128 + signal});
      SendTerminate();
    }
  }

  void Reap() {
    for (RankProcess& process : processes_) {
      if (process.wait_status.has_value() || !HasEnded(process)) continue;
      kill(-process.pid, SIGKILL);  // whatever it has left behind in its group
      int status = 0;
      waitpid(process.pid, &status, 0);
      process.wait_status = status;
      const bool by_us =
          interrupted_by_ != 0 || ((asked_ || process.killed_by_us) && WIFSIGNALED(status));
      if (status == 0 || by_us || IsAgreed(status)) continue;
      // It was not in its loop, and the signal that was passed on did what signals do.
      if (let_save_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) {
        interrupted_by_ = SIGTERM;
        BeginEnd({"the run was interrupted by SIGTERM", 128 + SIGTERM});
        continue;
      }
      // A rank that died without reporting an error is itself the first cause. Errors of other
      // ranks are then consequences: they lost a connection.
      const bool mute =
          WIFSIGNALED(status) || (WEXITSTATUS(status) != 1 &&
                                  WEXITSTATUS(status) != kHangExitCode && !Explained(process.rank));
      if (mute && mute_ == nullptr) mute_ = &process;
      if (first_failed_ == nullptr) first_failed_ = &process;
      has_failed_ = true;
      BeginEnd({DescribeDeath(process), ExitCode(status)});
    }
    if (template_ == nullptr) return;
    template_->ReapAdopted([&](pid_t pid) {
      return std::ranges::any_of(processes_,
                                 [pid](const RankProcess& process) { return process.pid == pid; });
    });
  }

  // It stays a zombie until it is reaped, and its process group's number its own.
  static bool HasEnded(const RankProcess& process) {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == process.pid;
  }

  // Whether the rank has told the others how it ends. One that ends with 1 may not have to: because
  // of another's failure. Nor does one that ends with 3: this launcher was stopped, and the rank
  // could not reach the store.
  bool Explained(int rank) const { return HasReportedEnd(*store_.store, rank); }

  bool IsAgreed(int status) const {
    const std::optional<Failure> end = KnownAgreedEnd(*store_.store);
    return end.has_value() && WIFEXITED(status) && WEXITSTATUS(status) == end->exit_code;
  }

  void BeginEnd(const Failure& reason) {
    if (deadline_.has_value()) return;
    ReportFailure(*store_.store, reason);
    deadline_ = Clock::now() + (reason.is_hang ? kTimeToEndAfterHang : kTimeToEndAlone);
  }

  void SendTerminate() {
    if (asked_) return;
    asked_ = true;
    deadline_ = Clock::now() + kTimeToEndWhenAsked;
    Send(SIGTERM);
  }

  // A rank that is stopped, for example by SIGSTOP, reacts only to SIGKILL.
  void KillStopped() {
    for (RankProcess& process : processes_) {
      siginfo_t info{};
      if (process.wait_status.has_value() || process.killed_by_us ||
          waitid(P_PID, static_cast<id_t>(process.pid), &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != process.pid)
        continue;
      process.killed_by_us = true;
      if (!asked_) ended_by_us_.push_back(process.rank);
      kill(-process.pid, SIGKILL);
    }
  }

  void EscalateStop() {
    if (!deadline_.has_value()) return;
    KillStopped();
    if (Clock::now() < *deadline_) return;
    if (!asked_) {
      for (const RankProcess& process : processes_) {
        if (!process.wait_status.has_value() && !process.killed_by_us)
          ended_by_us_.push_back(process.rank);
      }
      SendTerminate();
    } else {
      Send(SIGKILL);
      deadline_ = Clock::now() + kTimeToEndWhenAsked;
    }
  }

  void Send(int signal) const {
    for (const RankProcess& process : processes_) {
      if (!process.wait_status.has_value()) kill(-process.pid, signal);
    }
  }

  // --- Ending ------------------------------------------------------------------------------------

  // Prints how the run has ended. Returns its exit code, and the first line of the failure's
  // report.
  int Conclude(std::string& cause) {
    if (interrupted_by_ != 0 && !has_failed_) {
      output_.Say(
          absl::StrCat("lockstep: ", SignalName(interrupted_by_), "; every rank has ended"));
      return 128 + interrupted_by_;
    }
    std::optional<Failure> failure = KnownFailure(*store_.store);
    if (!failure.has_value()) {
      const std::optional<Failure> end = KnownAgreedEnd(*store_.store);
      if (!end.has_value()) return 0;
      output_.Say(absl::StrCat("lockstep: ", Printable(end->text)));
      return end->exit_code;
    }
    if (mute_ != nullptr) failure = {DescribeDeath(*mute_), ExitCode(*mute_->wait_status)};
    cause = failure->text.substr(0, failure->text.find('\n'));
    output_.Say(absl::StrCat("lockstep: ", Printable(failure->text)));
    if (failure->is_hang)
      output_.Say(DescribeActivities(*store_.store, nproc_, kTimeToReadReports));
    if (!ended_by_us_.empty()) {
      output_.Say(absl::StrCat("lockstep: ended the ranks that were still running: ",
                               absl::StrJoin(ended_by_us_, ", ")));
    }
    return failure->exit_code;
  }

  const CommandLine& command_line_;
  const int nproc_;
  const int num_restarts_;
  Console& console_;
  TemplateProcess* const template_;
  RankOutput& output_;
  HostedStore store_;
  StepBoard board_;
  std::vector<RankProcess> processes_;
  Silence silence_;

  bool has_failed_ = false;
  const RankProcess* first_failed_ = nullptr;
  const RankProcess* mute_ = nullptr;  // the first that died without a word
  int interrupted_by_ = 0;
  bool let_save_ = false;  // a first SIGTERM was passed on
  Clock::time_point let_save_since_;
  bool asked_ = false;                         // SIGTERM was sent
  std::optional<Clock::time_point> deadline_;  // of the present stage of ending
  std::vector<int> ended_by_us_;
};

// Writes the restart into metrics.jsonl, if the run has made its folder. Returns what failed.
std::string NoteRestart(int count, const Attempt& attempt) {
  std::error_code error;
  if (!std::filesystem::is_directory(attempt.run_dir, error)) return "";
  auto file = AppendFile::Open(attempt.run_dir + "/metrics.jsonl");
  absl::Status status = file.status();
  if (status.ok()) status = file->Append(RestartRecord(count, attempt));
  return std::string(status.message());
}

}  // namespace

int Launch(CommandLine command_line, int nproc) {
  Console console;
  Restarts restarts(command_line.restarts.value_or(0));
  TemplateProcess ranks;
  for (;;) {
    const bool may_restart = restarts.count() < command_line.restarts.value_or(0);
    const Attempt attempt = Launcher(command_line, nproc, restarts.count(), console,
                                     may_restart || restarts.count() > 0 ? &ranks : nullptr)
                                .Run();
    const Restarts::Decision decision = restarts.After(attempt);
    if (!decision.text.empty()) console.output().Say(decision.text);
    if (!decision.starts_again) return console.WaitForReaders(attempt.exit_code);
    if (attempt.run_dir.empty()) continue;
    command_line.run_dir = attempt.run_dir;  // also if the ranks have named it
    const std::string problem = NoteRestart(restarts.count(), attempt);
    if (!problem.empty()) console.output().Say("lockstep: warning: " + problem);
  }
}

void DieWithLauncher() {
  const char* launcher = std::getenv(kLauncherVariable);
  if (launcher == nullptr) return;
  // The rank leads a process group, so its children end with it. The signal has no other use: its
  // handler only stands in for SIGKILL.
  const int launcher_died = SIGRTMAX;
  struct sigaction action {};
  action.sa_handler = [](int) { kill(0, SIGKILL); };
  sigaction(launcher_died, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, launcher_died);
  // The launcher may have died before the kernel knew of our wish.
  TORCH_CHECK(getppid() == std::atoi(launcher), "the launcher that started this rank is gone");
}

}  // namespace lockstep::driver
