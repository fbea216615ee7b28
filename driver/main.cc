// The `lockstep` program: a launcher of ranks, or one rank. See command_line.h for its options and
// environment.h for what makes it a rank.

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/torch/versions/found.h"
#include "base/version.h"
#include "c10/util/Exception.h"
#include "c10/util/Logging.h"
#include "driver/files/files.h"
#include "driver/keep/name.h"
#include "driver/launch/launcher.h"
#include "driver/launch/list_scripts.h"
#include "driver/launch/rank.h"
#include "driver/launch/restarts.h"
#include "driver/launch/template_process.h"
#include "driver/products/products.h"
#include "driver/ranks/world.h"
#include "driver/settings/command_line.h"
#include "driver/settings/environment.h"
#include "driver/watching/cpu_allocator.h"

namespace lockstep::driver {
namespace {

int Complain(const std::string& message) {
  std::fprintf(stderr, "lockstep: %s\n", OneLine(message).c_str());
  return kUsageError;
}

// Descriptors 0 to 2 must be open. Otherwise the next file or socket would get one of these
// numbers, and the program's output would go there.
void OpenStandardStreams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) close(fd);
}

// A rank has some six connections to the run's store, which one process serves, and others to the
// ranks of each group. Many systems let a process open 1,024 files, and more if it asks. A
// container may allow a billion, and programs that a script starts may try to close so many.
void AllowManyOpenFiles() {
  constexpr rlim_t kMany = rlim_t{1} << 20;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kMany);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// A write beyond `ulimit -f` is then an error that names the file, as on a full disk. The signal
// would end the program with no message.
void LetLongFilesBeErrors() { std::signal(SIGXFSZ, SIG_IGN); }

// c10d logs what it also throws, with C++ frames. TORCH_CPP_LOG_LEVEL=INFO shows it.
void SetLogLevel() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
}

// Why the script cannot be read, "" where it can.
std::string ScriptProblem(const std::string& script) {
  std::error_code error;
  if (!std::filesystem::exists(script, error)) return "there is no such file";
  if (std::filesystem::is_directory(script, error)) return "it is a folder";
  if (access(script.c_str(), R_OK) != 0) return "it may not be read";
  return "";
}

// `lockstep keep --run-dir DIR`: becomes the keeper of the run's snapshots on this machine.
int KeepSnapshots(const CommandLine& command_line) {
  if (command_line.run_dir.empty())
    return Complain("keep needs the run's folder: lockstep keep --run-dir runs/first");
  const std::string name = KeeperName(command_line.run_dir);
  if (name.empty()) return Complain("cannot read or write keep.id in " + command_line.run_dir);
  const std::string program = FindRunfile("driver/keep/lockstep_keep");
  const std::string argument = "--name=" + name;
  execl(program.c_str(), program.c_str(), argument.c_str(), nullptr);
  return Complain("cannot start " + program);
}

int Main(const std::vector<std::string>& arguments) {
  absl::StatusOr<CommandLine> command_line = ParseCommandLine(arguments);
  if (!command_line.ok()) return Complain(std::string(command_line.status().message()));
  if (command_line->help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (command_line->version) {
    std::printf("lockstep %s (built for torch %s, runs with torch %s)\n", base::kVersion,
                base::TorchBuiltFor().Text().c_str(), base::TorchFound().Text().c_str());
    return 0;
  }
  const std::string mismatch = base::TorchMismatch(base::TorchBuiltFor(), base::TorchFound());
  if (!mismatch.empty()) return Complain(mismatch);
  // Under `bazel run` the paths on the command line are relative to where the user stands.
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory != nullptr && chdir(directory) != 0)
    return Complain(std::string("cannot enter ") + directory);

  if (command_line->list) {
    const auto list = ListScripts(command_line->script.empty() ? "scripts" : command_line->script);
    if (!list.ok()) return Complain(std::string(list.status().message()));
    std::fputs(list->c_str(), stdout);
    return 0;
  }

  const auto environment = RankFromEnvironment(ProcessEnvironment());
  if (!environment.ok()) return Complain(std::string(environment.status().message()));

  if (command_line->dry_run && command_line->script.empty())
    return Complain("--dry-run needs a script: --dry-run --nproc 8 SCRIPT");
  const bool restarts = command_line->restarts.value_or(0) > 0;
  if (restarts && (command_line->script.empty() || command_line->dry_run)) {
    return Complain(std::string("--restarts starts the ranks of a script again, and ") +
                    (command_line->dry_run ? "--dry-run has none" : "there is no script"));
  }
  if (command_line->script.empty()) {
    if (command_line->nproc.value_or(1) != 1 || !command_line->settings.empty()) {
      return Complain(
          "an interactive session has one rank and no settings; name a script after the options");
    }
    RunRank(*command_line, RankEnvironment{});
  }
  if (command_line->script == "keep" && !std::filesystem::exists("keep"))
    return KeepSnapshots(*command_line);
  // `lockstep check` and `lockstep propose` are scripts of the Lua library, unless there is a file
  // of that name.
  for (const std::string command : {"check", "propose"}) {
    if (command_line->script != command || std::filesystem::exists(command)) continue;
    command_line->script = FindRunfile("driver/lualib/commands/" + command + ".lua");
    if (command == "propose") command_line->nproc = command_line->nproc.value_or(1);
  }
  const std::string cannot = "cannot run \"" + command_line->script + "\": ";
  const std::string problem = ScriptProblem(command_line->script);
  if (!problem.empty()) return Complain(cannot + problem);

  if (command_line->dry_run && environment->has_value()) {
    return Complain(
        "--dry-run plays all ranks in one process, but RANK or SLURM_PROCID is set: start it "
        "without the cluster's launcher, with --nproc N");
  }
  if (restarts && environment->has_value() && !command_line->nproc.has_value()) {
    return Complain(
        "--restarts is for ranks that this program starts, but RANK or SLURM_PROCID is set: the "
        "cluster's launcher starts ranks again, torchrun with --max-restarts");
  }
  if (environment->has_value() && !command_line->nproc.has_value())
    RunRank(*command_line, **environment);
  if (environment->has_value() && std::getenv("RANK") != nullptr) {
    return Complain(
        "--nproc starts ranks here, but RANK is set: a cluster's launcher starts them already; "
        "drop one");
  }
  const int gpus = LocalGpuCount();
  constexpr int kDefaultNprocOnCpu = 2;
  const int nproc = command_line->nproc.value_or(gpus > 0 ? gpus : kDefaultNprocOnCpu);
  if (command_line->dry_run) {
    RankEnvironment mirrored;
    mirrored.world_size = nproc;
    mirrored.mirrored = true;
    RunRank(*command_line, mirrored);
  }
  if (nproc == 1 && !restarts) RunRank(*command_line, RankEnvironment{});
  if (!std::filesystem::is_regular_file(command_line->script)) {
    return Complain(cannot + "it is not a regular file, and " +
                    (nproc == 1
                         ? std::string("a restart could not read it again; save it as a file")
                         : std::to_string(nproc) +
                               " ranks would each read a part of it; save it as a file, or "
                               "add --nproc 1"));
  }
  return Launch(*command_line, nproc);
}

}  // namespace
}  // namespace lockstep::driver

int main(int argc, char** argv) {
  lockstep::driver::OpenStandardStreams();
  lockstep::driver::AllowManyOpenFiles();
  lockstep::driver::LetLongFilesBeErrors();
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (auto given = lockstep::driver::ServeAsTemplate()) arguments = *given;
  lockstep::driver::SetLogLevel();
  lockstep::driver::InstallCpuAllocator();
  lockstep::driver::InstallProducts();
  try {
    return lockstep::driver::Main(arguments);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
  }
  return 1;
}
