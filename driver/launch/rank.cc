#include "driver/launch/rank.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "c10/core/AutogradState.h"
#include "c10/util/Exception.h"
#include "c10/util/Logging.h"
#include "driver/files/file_wait.h"
#include "driver/files/files.h"
#include "driver/launch/launcher.h"
#include "driver/launch/restarts.h"
#include "driver/lua/bind/context.h"
#include "driver/lua/bind/modules.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/lua/vm/whereabouts.h"
#include "driver/lua/vm/wording.h"
#include "driver/network/bounded_store.h"
#include "driver/network/printable.h"
#include "driver/ranks/failure.h"
#include "driver/ranks/script_calls.h"
#include "driver/ranks/signs_of_life.h"
#include "driver/ranks/step_board.h"
#include "driver/ranks/watchdog/wait_watch.h"
#include "driver/ranks/watchdog/watchdog.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

// The thread that ends this process: the script's, or the one that watches for failures. The first
// that comes has it, and alone tells why; the other stays here until the process is no more.
void BeginEnd() {
  static std::atomic<std::thread::id> ender{};
  std::thread::id first;
  if (ender.compare_exchange_strong(first, std::this_thread::get_id())) return;
  if (first == std::this_thread::get_id()) return;
  for (;;) pause();
}

bool HasLauncher() { return std::getenv(kLauncherVariable) != nullptr; }

double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// Runs `write` on its own thread and waits a moment for it. The reader of the output may be
// stopped, and another thread, such as one that reads from a pipe, may hold the lock of a stream
// forever.
void WriteForAMoment(std::function<void()> write) {
  std::packaged_task<void()> task(std::move(write));
  const std::future<void> written = task.get_future();
  std::thread(std::move(task)).detach();
  written.wait_for(std::chrono::milliseconds(500));
}

// Prints to stderr, on the way to the end.
void Say(const std::string& text) {
  WriteForAMoment([line = text + "\n"] { std::fputs(line.c_str(), stderr); });
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// A folder that is removed with this process, or "".
std::string& ScratchFolder() {
  static auto* const folder = new std::string();
  return *folder;
}

[[noreturn]] void EndProcess(int code, bool store_is_lost = false) {
  WriteForAMoment([] {
    std::fflush(stdout);
    std::fflush(nullptr);
  });
  std::error_code error;
  if (!ScratchFolder().empty()) std::filesystem::remove_all(ScratchFolder(), error);
  // The store was our launcher's, who else would end what this rank has started.
  if (store_is_lost && HasLauncher()) kill(0, SIGKILL);
  // Not exit(): threads of libtorch and the store still run, and static destructors would race
  // them.
  _exit(code);
}

// Prints what libtorch's operators warn of, but no advice against find_unused: that the first step
// used all parameters does not tell that each one will. The first may have pictures.
class PlainWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (absl::StrContains(warning.msg(), "did not find any unused parameters")) return;
    std::fprintf(stderr, "lockstep: warning: %s\n", lua::InOurWords(warning.msg()).c_str());
  }
};

// As one of the processes that meet in the store: a dry run is one.
Member MemberOf(const World& world) {
  const RankEnvironment& environment = world.environment;
  return {world.store, environment.rank, environment.mirrored ? 1 : environment.world_size,
          environment.rank == 0 && !environment.store_is_hosted};
}

// Returns whether another process wants to know how this one ends: another rank, or a launcher,
// which a single rank has with --restarts.
bool IsWatched(const World& world) { return MemberOf(world).world_size > 1 || HasLauncher(); }

// Prints that this rank ends because of another rank's failure. A launcher prints failures itself,
// so ranks call this, and TellCause, only without a launcher or if it cannot hear of the failure.
void ReportConsequence(int rank, const std::string& first) {
  Say(absl::StrCat("lockstep: rank ", rank, " ends, because ", Printable(FirstLine(first))));
}

// Prints this rank's own failure. If another rank failed first, prints that this one ends for it.
void TellCause(int rank, const std::string& own, const std::string& first) {
  if (first != own) return ReportConsequence(rank, first);
  Say(absl::StrCat("lockstep: ", Printable(own)));
}

// Tells the run, and the terminal where no launcher does, that this rank has failed.
[[noreturn]] void EndWithFailure(const World& world, const std::string& message,
                                 const std::string& traceback, int exit_code = 1) {
  BeginEnd();
  const int rank = world.environment.rank;
  const bool alone = MemberOf(world).world_size == 1;
  std::string text = alone ? message : absl::StrCat("rank ", rank, ": ", message);
  std::optional<Failure> first;
  bool is_silent = false;
  try {
    // A collective that waits for a rank that is done complains about a connection.
    const std::string ends = alone || world.store == nullptr ? "" : DescribeEnds(MemberOf(world));
    if (!ends.empty()) absl::StrAppend(&text, "\nnote: by then the script had ended on ", ends);
    if (!traceback.empty()) absl::StrAppend(&text, "\n", traceback);
    if (world.store != nullptr) first = ReportFailure(*world.store, {text, exit_code});
  } catch (const StoreIsSilent& error) {
    is_silent = true;
    const std::string reason = error.what_without_backtrace();
    if (!absl::StrContains(text, reason)) absl::StrAppend(&text, "\nnote: ", reason);
  } catch (const std::exception&) {
    // The store is gone; what this rank has to say is said below.
  }
  if (!HasLauncher() || !first.has_value())
    TellCause(rank, text, first.value_or(Failure{text}).text);
  if (first.has_value()) LeaveFailedRun(MemberOf(world), *first);
  const bool is_lost = world.store != nullptr && !first.has_value() && !is_silent;
  // A launcher has the exit code from the store; to it a rank that ends with 1 has said why.
  EndProcess(is_silent ? kHangExitCode : HasLauncher() ? 1 : exit_code, is_lost);
}

// Returns the call into a file system that began first, as an overdue call without a group.
std::optional<OverdueCall> FindOverdueFile(std::chrono::milliseconds limit) {
  const std::optional<FileWait::Wait> wait = FileWait::Oldest();
  if (!wait.has_value() || wait->waited <= limit) return std::nullopt;
  CollectiveCall call;
  call.what = wait->what;
  call.limit = limit;
  return OverdueCall{call, wait->waited};
}

// Returns what this rank does, with a file that it waits for.
std::string DescribeRank(Activity& activity) {
  constexpr std::chrono::milliseconds kWorthALine(500);
  std::string text = activity.Describe();
  const std::optional<FileWait::Wait> wait = FileWait::Oldest();
  if (wait.has_value() && wait->waited > kWorthALine) {
    // Before the collectives: it explains more than those that are done.
    text.insert(
        std::min(text.find('\n'), text.size()),
        absl::StrFormat("\n  waits %.1f s  to %s", Seconds(wait->waited), Printable(wait->what)));
  }
  return text;
}

void EndWhenAnotherFails(const World& world) {
  WatchForFailure(
      MemberOf(world), [activity = world.activity] { return DescribeRank(*activity); },
      [](const Member& watcher, const Failure& failure) {
        BeginEnd();
        if (!HasLauncher()) ReportConsequence(watcher.rank, failure.text);
        if (!failure.store_is_lost) LeaveFailedRun(watcher, failure);
        const bool is_own = failure.is_hang || failure.exit_code == kUsageError;
        EndProcess(is_own && !HasLauncher() ? failure.exit_code : 1, failure.store_is_lost);
      });
}

// Returns the message for a collective, or a file, that outlasted its limit.
std::string DescribeOverdue(const OverdueCall& overdue) {
  const CollectiveCall& call = overdue.call;
  if (call.group.empty()) {
    return absl::StrCat("has waited ", absl::StrFormat("%.1f", Seconds(overdue.waited)), " s to ",
                        Printable(call.what),
                        ": its disk or server does not answer; the limit that --timeout sets is ",
                        Seconds(call.limit), " s");
  }
  return absl::StrCat(call.place, call.place.empty() ? "" : ": ", call.what, " of ", call.group,
                      " has waited ", absl::StrFormat("%.1f", Seconds(overdue.waited)),
                      " s for other ranks; the limit that --timeout sets is ", Seconds(call.limit),
                      " s");
}

// Ends the run for ranks that wait for others. `member.store` is this thread's own.
[[noreturn]] void EndHungRun(const Member& member, Activity& activity, const std::string& text) {
  BeginEnd();
  Failure failure;
  failure.text = absl::StrCat(text, ". What each rank was doing:");
  failure.exit_code = kHangExitCode;
  failure.is_hang = true;
  try {
    // First the own activity, which waits for no answer: a launcher that is stopped reads it later.
    ReportActivity(member, DescribeRank(activity));
    const Failure first = ReportFailure(*member.store, failure);
    if (!HasLauncher()) {
      TellCause(member.rank, failure.text, first.text);
      if (first.text == failure.text) {
        Say(DescribeActivities(*member.store, member.world_size, kTimeToDescribe));
        failure.is_hang = false;  // those that can report have: the store is not needed for long
      }
    }
  } catch (const std::exception& error) {
    const auto* silent = dynamic_cast<const StoreIsSilent*>(&error);
    Say(absl::StrCat("lockstep: ", text, "\n  rank ", member.rank, ": ",
                     absl::StrReplaceAll(DescribeRank(activity), {{"\n", "\n  "}}),
                     "\n  of the other ranks nothing is known: ",
                     silent != nullptr
                         ? silent->what_without_backtrace()
                         : "the store was lost, its host (the launcher, or rank 0) is gone"));
    EndProcess(kHangExitCode);
  }
  LeaveFailedRun(member, failure);
  EndProcess(HasLauncher() ? 1 : kHangExitCode);
}

// Looks from time to time, on a thread that lives until the process ends.
void WatchCollectives(const World& world, std::chrono::milliseconds timeout) {
  Member member = MemberOf(world);
  member.store = world.store->clone();  // the script's thread may wait in its own
  WatchedRank watched;
  watched.find_overdue = [activity = world.activity, timeout] {
    const std::optional<OverdueCall> overdue = activity->FindOverdue();
    return overdue.has_value() ? overdue : FindOverdueFile(timeout);
  };
  // A rank that waits for others does no work: two that wait would excuse each other.
  watched.is_alone = [activity = world.activity] {
    return WorkAlone::IsUnderWay() && !activity->IsWaiting();
  };
  // A connection of its own: where the host is stopped, a read blocks what is sent after it.
  std::thread([member, timeout, watched, store = world.store->clone(), activity = world.activity] {
    const OverdueCall overdue = WaitForHang(store, timeout, watched);
    EndHungRun(member, *activity,
               absl::StrCat("rank ", member.rank, ": ", DescribeOverdue(overdue)));
  }).detach();
}

// Ends a run of one rank if its disk does not answer. Lives until the process ends.
void WatchFiles(std::chrono::milliseconds timeout) {
  WatchedRank watched;
  watched.find_overdue = [timeout] { return FindOverdueFile(timeout); };
  watched.is_alone = [] { return false; };
  std::thread([timeout, watched] {
    const auto own_store = c10::make_intrusive<c10d::HashStore>();
    const OverdueCall overdue = WaitForHang(own_store, timeout, watched);
    BeginEnd();
    Say(absl::StrCat("lockstep: ", DescribeOverdue(overdue)));
    EndProcess(kHangExitCode);
  }).detach();
}

// Ends the run where ranks wait for each other in different groups, on a thread that lives until
// the process ends.
void WatchWaits(const World& world) {
  Member member = MemberOf(world);
  member.store = world.store->clone();  // the script's thread may wait in its own
  std::thread([member, activity = world.activity] {
    WaitWatch watch(member.store, member.rank, member.world_size,
                    [activity] { return activity->FindWait(WaitWatch::kOldEnough); });
    try {
      for (;;) {
        std::this_thread::sleep_for(WaitWatch::kBetweenLooks);
        const auto text = watch.Look(WaitWatch::Clock::now());
        if (text.has_value()) EndHungRun(member, *activity, *text);
      }
    } catch (const std::exception&) {
      // The store is lost or silent: that is said where a rank waits, or fails.
    }
  }).detach();
}

// Ends the run if a rank is stopped or dead and nobody else finds out: no launcher of ours sees its
// end, and perhaps no rank waits for it.
void EndWhenAnotherIsSilent(const World& world, std::chrono::milliseconds timeout) {
  const Member member = MemberOf(world);
  if (!member.hosts_store) return;
  // Where ranks wait in a collective, the watchdog comes first: it knows more.
  const auto limit = timeout + std::min<std::chrono::milliseconds>(kTimeToReport, timeout / 2);
  WatchForSilence(member, limit,
                  [activity = world.activity](const Member& watcher, const std::string& message) {
                    EndHungRun(watcher, *activity, message);
                  });
}

// The cores of this machine, shared by its ranks.
void ShareCores(const RankEnvironment& environment) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / environment.local_world_size));
}

// runs/<script>-<time>-<random>, the same on every rank. Runs that start in the same second, on
// this machine or another, share no folder.
std::string AgreeOnRunDir(const CommandLine& command_line, const World& world) {
  if (world.environment.rank != 0) return world.store->get_to_str(kRunDirKey);
  std::string run_dir = command_line.run_dir;
  if (command_line.dry_run) {  // also with --run-dir: nothing of that run may change
    run_dir = std::filesystem::temp_directory_path() / "lockstep-dry-run-XXXXXX";
    TORCH_CHECK(mkdtemp(run_dir.data()) != nullptr, "--dry-run: cannot make the folder ", run_dir,
                ": ", std::strerror(errno));
    ScratchFolder() = run_dir;
  } else if (run_dir.empty()) {
    const std::string stem = std::filesystem::path(command_line.script).stem().string();
    run_dir = absl::StrCat("runs/", stem.empty() ? "interactive" : stem, "-",
                           absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()),
                           "-", absl::Hex(std::random_device()() & 0xffff, absl::kZeroPad4));
  }
  run_dir = std::filesystem::absolute(run_dir).string();
  world.store->set(kRunDirKey, run_dir);
  return run_dir;
}

// Tells the other ranks that the script has ended here, before anything of it is closed. A rank
// that waits for this one then gets this reason, and not a closed connection.
void TellEnd(const World& world, const std::string& how) {
  const Member member = MemberOf(world);
  if (member.world_size == 1) return;
  ReportEnd(member, how);
  // After the report: a rank whose collective now fails reads there how this one has ended.
  TellEndOfScript();
}

// Ends the rank after TellEnd, normally or as all ranks agreed. The rank that hosts the store still
// ends with an error if another fails before all are done.
[[noreturn]] void EndNormally(const World& world, int code = 0) {
  const Member member = MemberOf(world);
  if (member.world_size > 1) {
    if (!member.hosts_store) BeginEnd();
    LeaveStore(member, kNoTimeout);
    if (member.hosts_store) {
      const std::optional<Failure> failure = KnownFailure(*member.store);
      BeginEnd();
      if (failure.has_value()) ReportConsequence(member.rank, failure->text);
      EndProcess(failure.has_value() ? 1 : code);
    }
  }
  EndProcess(code);
}

// Every rank ends by this, with the same code and for the same reason. Rank 0 tells it where no
// launcher does.
[[noreturn]] void EndTogether(const World& world, int code, const std::string& reason) {
  if (IsWatched(world)) ReportAgreedEnd(*world.store, {reason, code});
  if (world.environment.rank == 0 && !HasLauncher())
    std::fprintf(stderr, "lockstep: %s\n", reason.c_str());
  TellEnd(world, "as all ranks agreed");
  EndNormally(world, code);
}

// os.exit. A rank that leaves says so: the others may come to wait for it, and the launcher would
// find an exit code without a reason.
int Exit(lua_State* state) {
  const World& world = GetContext(state).world;
  int code = 0;
  if (lua_isboolean(state, 1)) {
    code = lua_toboolean(state, 1) ? 0 : 1;
  } else if (!lua_isnoneornil(state, 1)) {
    code = static_cast<int>(lua::ReadInteger(state, 1, "os.exit: code")) & 0xff;
  }
  std::string line = lua::ScriptLine(state);
  line = line.substr(0, line.rfind(": "));
  const std::string call = absl::StrCat("os.exit(", code, ") at ", line);
  if (code == 0) {
    for (const auto& finish : GetContext(state).at_end) finish();
    TellEnd(world, "by " + call);
    EndNormally(world);
  }
  if (IsWatched(world)) {
    BeginEnd();
    const int rank = world.environment.rank;
    const std::string text = absl::StrCat("rank ", rank, " called ", call);
    ReportEnd(MemberOf(world), "by " + call);
    const Failure first = ReportFailure(*world.store, {text, code});
    if (!HasLauncher()) TellCause(rank, text, first.text);
    LeaveFailedRun(MemberOf(world), first);
  }
  EndProcess(code);
}

std::optional<lua::ScriptError> RunIn(lua::LuaVm& vm, Context& context) {
  const std::string& script = context.command_line.script;
  SetContext(vm.state(), context);
  lua::PreloadModules(vm);
  lua::AnswerForThisThread(vm.state());
  lua_getglobal(vm.state(), "os");
  lua_pushcfunction(vm.state(), Exit);
  lua_setfield(vm.state(), -2, "exit");
  lua_pop(vm.state(), 1);
  // `lockstep` is the one global of ours: scope, memory, version.
  if (auto error = vm.RunString("lockstep = require 'lockstep'", "=lockstep")) return error;
  if (script.empty()) return vm.RunString("require('lockstep.repl').run()", "=lockstep");
  if (context.command_line.dry_run) {
    if (auto error = vm.RunString("require('lockstep.dry_run').start()", "=lockstep")) return error;
  }
  if (auto error = vm.RunFile(script)) return error;
  // A state may still be written in the background.
  if (auto error = vm.RunString(
          "local state = package.loaded['lockstep.state'] if state then state.finish() end",
          "=lockstep"))
    return error;
  if (context.command_line.dry_run) {
    if (auto error = vm.RunString("require('lockstep.dry_run').finish()", "=lockstep"))
      return error;
  }
  if (!context.command_line.settings.empty() && !context.settings_used) {
    context.usage_error =
        absl::StrCat("--set ", OneLine(context.command_line.settings[0].first),
                     " was given, but the script has no run.config{...} that takes it");
    return lua::ScriptError{context.usage_error, ""};
  }
  for (const auto& finish : context.at_end) finish();
  return std::nullopt;
}

std::optional<lua::ScriptError> RunScript(Context& context) {
  const std::string folder =
      std::filesystem::path(context.command_line.script).parent_path().string();
  auto vm = std::make_unique<lua::LuaVm>(
      lua::LuaVm::Options{FindRunfile("driver/lualib"), folder.empty() ? "." : folder});
  std::optional<lua::ScriptError> error = RunIn(*vm, context);
  // Nothing is closed before the run knows how the script has ended: what goes to other ranks as an
  // object ends would be taken for a failure's cause.
  if (error.has_value()) {
    static_cast<void>(vm.release());
  } else {
    TellEnd(context.world, "");
  }
  return error;
}

}  // namespace

void RunRank(const CommandLine& command_line, const RankEnvironment& environment) {
  Context context;
  context.command_line = command_line;
  context.world.environment = environment;
  context.timeout = std::chrono::seconds(command_line.timeout_s.value_or(kDefaultTimeoutSeconds));
  try {
    DieWithLauncher();
    JoinStepBoard(environment.local_rank);
    // Gloo may write to a peer that has just left. This is an error of the collective, and must not
    // end the process silently. A single rank ends as other programs do: `lockstep ... | head`.
    if (environment.world_size > 1) signal(SIGPIPE, SIG_IGN);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    ShareCores(environment);
    // libtorch's remarks, without its source files and functions.
    static PlainWarnings warnings;
    c10::WarningUtils::set_warning_handler(&warnings);
    // Hooks that are Lua must run on the thread that owns the Lua state.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    context.world = JoinStore(environment, context.timeout);
    context.world.debug_collectives = command_line.debug_collectives;
    if (MemberOf(context.world).world_size > 1) {
      context.world.activity->set_find_place(lua::RunningScriptLine);
      context.world.activity->set_ask_place(lua::FindScriptLine);
      EndWhenAnotherFails(context.world);
      WatchCollectives(context.world, context.timeout);
      WatchWaits(context.world);
      GiveSignsOfLife(context.world.store, environment.rank, context.timeout / 10);
      EndWhenAnotherIsSilent(context.world, context.timeout);
    } else {
      WatchFiles(context.timeout);
    }
    // The launcher sees ranks that die: those that start slowly are no hang.
    constexpr std::chrono::milliseconds kLongStart = std::chrono::seconds(kDefaultTimeoutSeconds);
    MeetRanks(context.world,
              HasLauncher() ? std::max(context.timeout, kLongStart) : context.timeout,
              context.timeout);
    // NCCL's watchdog ends the process, and says why in the log.
    if (context.world.device.is_cuda()) FLAGS_caffe2_log_level = c10::GLOG_WARNING;
    context.run_dir = AgreeOnRunDir(command_line, context.world);
    context.end_together = [&context](int code, const std::string& reason) {
      EndTogether(context.world, code, reason);
    };
    if (const std::optional<lua::ScriptError> error = RunScript(context)) {
      const bool is_usage =
          !context.usage_error.empty() && absl::StrContains(error->message, context.usage_error);
      EndWithFailure(context.world, error->message, error->traceback, is_usage ? kUsageError : 1);
    }
    EndNormally(context.world);
  } catch (const c10::Error& error) {
    EndWithFailure(context.world, error.what_without_backtrace(), "");
  } catch (const std::exception& error) {
    EndWithFailure(context.world, error.what(), "");
  }
}

}  // namespace lockstep::driver
