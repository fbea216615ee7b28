#include "driver/rank.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "c10/core/AutogradState.h"
#include "c10/util/Exception.h"
#include "driver/context.h"
#include "driver/failure.h"
#include "driver/files.h"
#include "driver/launcher.h"
#include "driver/lua/modules.h"
#include "driver/lua/stack.h"
#include "driver/lua/vm.h"

namespace lockstep::driver {
namespace {

constexpr int kDefaultTimeoutSeconds = 120;

// Set once this rank has its own end to tell, so that the watching thread keeps quiet.
std::atomic<bool> ending{false};

[[noreturn]] void EndProcess(int code) {
  std::fflush(nullptr);
  // Not exit(): threads of libtorch and the store still run, and static destructors would race them.
  _exit(code);
}

// Tells the run, and the terminal where no launcher does, that this rank has failed.
[[noreturn]] void EndWithFailure(Context& context, const std::string& text) {
  ending = true;
  const int rank = context.world.environment.rank;
  const bool alone = context.world.environment.world_size == 1;
  const std::string own = alone ? text : absl::StrCat("rank ", rank, ": ", text);
  std::string first = own;
  try {
    if (context.world.store != nullptr) first = ReportFailure(*context.world.store, own);
  } catch (const std::exception&) {
    // The store is gone; what this rank has to say is said below.
  }
  if (std::getenv(kLauncherVariable) == nullptr || context.world.store == nullptr) {
    if (first == own) {
      std::fprintf(stderr, "lockstep: %s\n", own.c_str());
    } else {
      std::fprintf(stderr, "lockstep: rank %d ends, because %s\n", rank, first.substr(0, first.find('\n')).c_str());
    }
  }
  EndProcess(1);
}

void EndWhenAnotherFails(const Context& context) {
  const int rank = context.world.environment.rank;
  const bool quiet = std::getenv(kLauncherVariable) != nullptr;
  WatchForFailure(context.world.store, [rank, quiet](const std::string& text) {
    if (ending) return;
    if (!quiet) {
      std::fprintf(stderr, "lockstep: rank %d ends, because %s\n", rank, text.substr(0, text.find('\n')).c_str());
    }
    EndProcess(1);
  });
}

// The cores of this machine, shared by its ranks.
void ShareCores(const RankEnvironment& environment) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / environment.local_world_size));
}

// runs/<script>-<time>, the same on every rank.
std::string AgreeOnRunDir(const CommandLine& command_line, const World& world) {
  constexpr char kKey[] = "lockstep/run_dir";
  if (world.environment.rank != 0) return world.store->get_to_str(kKey);
  std::string run_dir = command_line.run_dir;
  if (run_dir.empty()) {
    const std::string stem = std::filesystem::path(command_line.script).stem().string();
    run_dir = absl::StrCat("runs/", stem.empty() ? "interactive" : stem, "-",
                           absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()));
    if (std::filesystem::exists(run_dir)) absl::StrAppend(&run_dir, "-", getpid());
  }
  run_dir = std::filesystem::absolute(run_dir).string();
  world.store->set(kKey, std::vector<uint8_t>(run_dir.begin(), run_dir.end()));
  return run_dir;
}

// os.exit. A rank that leaves early says so: otherwise the others wait for it, or the launcher finds
// an exit code without a reason.
int Exit(lua_State* state) {
  Context& context = GetContext(state);
  int code = 0;
  if (lua_isboolean(state, 1)) {
    code = lua_toboolean(state, 1) ? 0 : 1;
  } else if (!lua_isnoneornil(state, 1)) {
    code = static_cast<int>(lua::ReadInteger(state, 1, "os.exit: code")) & 0xff;
  }
  ending = true;
  if (context.world.environment.world_size > 1) {
    std::string line = lua::ScriptLine(state);
    line = line.substr(0, line.rfind(": "));
    const std::string text =
        absl::StrCat("rank ", context.world.environment.rank, " called os.exit(", code, ") at ", line);
    if (code == 0) {
      const std::string key = absl::StrCat("lockstep/left/", context.world.environment.rank);
      context.world.store->set(key, std::vector<uint8_t>(text.begin(), text.end()));
    } else {
      ReportFailure(*context.world.store, text);
      if (std::getenv(kLauncherVariable) == nullptr) std::fprintf(stderr, "lockstep: %s\n", text.c_str());
    }
  }
  EndProcess(code);
}

// The rank that hosts the store goes last.
void WaitForOthers(const World& world) {
  const RankEnvironment& environment = world.environment;
  if (environment.world_size == 1 || environment.store_is_hosted) return;
  const int64_t finished = world.store->add("lockstep/num_finished", 1);
  if (finished == environment.world_size) world.store->set("lockstep/all_finished", std::vector<uint8_t>{1});
  if (environment.rank == 0) world.store->wait({"lockstep/all_finished"}, std::chrono::hours(24));
}

std::optional<lua::ScriptError> RunScript(Context& context) {
  const std::string& script = context.command_line.script;
  const std::string folder = std::filesystem::path(script).parent_path().string();
  lua::LuaVm vm({FindRunfile("driver/lua"), folder.empty() ? "." : folder});
  SetContext(vm.state(), context);
  lua::PreloadModules(vm);
  lua_getglobal(vm.state(), "os");
  lua_pushcfunction(vm.state(), Exit);
  lua_setfield(vm.state(), -2, "exit");
  lua_pop(vm.state(), 1);
  // `lockstep` is the one global of ours: scope, memory, version.
  if (auto error = vm.RunString("lockstep = require 'lockstep'", "=lockstep")) return error;
  if (script.empty()) return vm.RunString("require('lockstep.repl').run()", "=lockstep");
  if (auto error = vm.RunFile(script)) return error;
  if (!context.command_line.settings.empty() && !context.settings_used) {
    return lua::ScriptError{absl::StrCat("--set ", context.command_line.settings[0].first,
                                         " was given, but the script has no run.config{...} that takes it"),
                            ""};
  }
  return std::nullopt;
}

}  // namespace

void RunRank(const CommandLine& command_line, const RankEnvironment& environment) {
  Context context;
  context.command_line = command_line;
  context.world.environment = environment;
  context.timeout = std::chrono::seconds(command_line.timeout_s.value_or(kDefaultTimeoutSeconds));
  try {
    DieWithLauncher();
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    ShareCores(environment);
    // Hooks that are Lua must run on the thread that owns the Lua state.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    context.world = JoinWorld(environment, context.timeout);
    if (environment.world_size > 1) EndWhenAnotherFails(context);
    context.run_dir = AgreeOnRunDir(command_line, context.world);
    if (const std::optional<lua::ScriptError> error = RunScript(context)) {
      EndWithFailure(context, error->traceback.empty() ? error->message
                                                       : absl::StrCat(error->message, "\n", error->traceback));
    }
    ending = true;
    WaitForOthers(context.world);
  } catch (const c10::Error& error) {
    EndWithFailure(context, error.what_without_backtrace());
  } catch (const std::exception& error) {
    EndWithFailure(context, error.what());
  }
  EndProcess(0);
}

}  // namespace lockstep::driver
