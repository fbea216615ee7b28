#include "driver/settings/command_line.h"

#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/nearest.h"

namespace lockstep::driver {

const char kUsage[] =
    R"(Runs a Lua training script on one or many ranks.

  ./run [OPTION]... SCRIPT [OPTION]... [ARGUMENT]...
  ./run                       an interactive session
  ./run check                 tries every rank's device and the ways between ranks, and names what
                              is wrong or slow
  ./run keep --run-dir DIR    keeps this machine's snapshots of the run in memory: run:state with
                              memory_every starts it by itself
  ./run propose MODEL --set gpus=N
                              grids that train a model on N GPUs, by predicted time and memory
  ./run --list [FOLDER]       the scripts of a folder, of scripts/ unless named, and what each does

  --nproc N        ranks to start on this machine; default: one for each GPU, or 2 without a GPU
  --set key=value  overrides a value of the script's run.config{...}; nested keys as a.b=c
  --run-dir DIR    where metrics, configuration and plots go; default: a new one in runs/
  --timeout S      seconds that ranks wait for each other; then the run ends with exit code 3 and
                   a table of what each rank was doing; default: 120
  --restarts N     starts the ranks again at once after a failure, at most N times; run:resume goes on
                   from the last saved state. Not after exit code 2, an interrupt, SIGTERM, or three
                   failures in a row at the same step; default: 0
  --evict-slow F   after 100 steps in which a rank worked more than F times as long as the median
                   rank, saves and ends with exit code 75, so that its machine is replaced
  --verify-every N every N steps all replicas compute one micro-batch; one whose bits differ ends the
                   run with exit code 75 and is named, so that its machine is replaced
  --debug-collectives
                   ranks compare the collectives of backward passes, too, before they enter them, and
                   name the script line of each that differs; slower
  --dry-run        takes one step as rank 0 of N in one process, and prints what it needs: shapes,
                   parameters, memory by line, FLOPs; trains nothing and leaves no files
  --help           this text
  --version        the version of Lockstep, and of the torch that it was built for and runs with
  --               what follows is the script's, as run.args

Under a cluster's launcher the same binary is one rank: it reads RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT (torchrun --no-python, Kubernetes), or SLURM_* (srun).

  ./run scripts/digits_vlm.lua
  ./run --nproc 4 scripts/digits_vlm.lua --set lr=1e-3
)";

namespace {

constexpr int kMaxNproc = 1024;
constexpr int kMaxTimeout = 7 * 24 * 3600;
constexpr int kMaxRestarts = 100000;
constexpr int kMaxVerifyEvery = 1000000000;

absl::Status InvalidArgument(const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(OneLine(message), "; --help lists the options"));
}

absl::Status ParseCount(const std::string& option, const char* unit, int min, int max,
                        const std::string& value, std::optional<int>& count) {
  int parsed = 0;
  if (!absl::SimpleAtoi(value, &parsed) || parsed < min || parsed > max) {
    return InvalidArgument(absl::StrCat(option, " takes a whole number of ", unit, " from ", min,
                                        " to ", max, ", not \"", value, "\""));
  }
  count = parsed;
  return absl::OkStatus();
}

absl::Status ParseFactor(const std::string& option, const std::string& value,
                         std::optional<double>& factor) {
  double parsed = 0;
  if (!absl::SimpleAtod(value, &parsed) || !(parsed > 1) || !std::isfinite(parsed))
    return InvalidArgument(absl::StrCat(option, " takes a number above 1, not \"", value, "\""));
  factor = parsed;
  return absl::OkStatus();
}

absl::Status ParseSetting(const std::string& value, CommandLine& command_line) {
  const size_t equals = value.find('=');
  if (equals == std::string::npos || equals == 0) {
    return InvalidArgument(absl::StrCat("--set takes key=value, not \"", value, "\""));
  }
  command_line.settings.emplace_back(value.substr(0, equals), value.substr(equals + 1));
  return absl::OkStatus();
}

}  // namespace

std::string OneLine(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppend(&line, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      line.push_back(c);
    }
  }
  return line;
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine command_line;
  bool options_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (options_ended || argument.empty() || argument[0] != '-' || argument == "-") {
      if (command_line.script.empty()) {
        if (argument.empty()) return InvalidArgument("the script's name is empty");
        command_line.script = argument;
      } else {
        command_line.script_arguments.push_back(argument);
      }
      continue;
    }
    if (argument == "--") {
      options_ended = true;
      continue;
    }
    if (argument == "--help" || argument == "-h") {
      command_line.help = true;
      continue;
    }
    if (argument == "--version") {
      command_line.version = true;
      continue;
    }
    if (argument == "--list") {
      command_line.list = true;
      continue;
    }
    if (argument == "--debug-collectives") {
      command_line.debug_collectives = true;
      continue;
    }
    if (argument == "--dry-run") {
      command_line.dry_run = true;
      continue;
    }
    // --option value, or --option=value.
    const size_t equals = argument.find('=');
    const std::string option = argument.substr(0, equals);
    if (option != "--nproc" && option != "--set" && option != "--run-dir" &&
        option != "--timeout" && option != "--restarts" && option != "--evict-slow" &&
        option != "--verify-every") {
      const std::string nearest =
          base::Nearest(option, {"--nproc", "--set", "--run-dir", "--timeout", "--restarts",
                                 "--evict-slow", "--verify-every", "--list", "--help", "--version",
                                 "--dry-run", "--debug-collectives"});
      return InvalidArgument(
          absl::StrCat("unknown option \"", option, "\"",
                       nearest.empty() ? "" : absl::StrCat(" (did you mean \"", nearest, "\"?)")));
    }
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return InvalidArgument(absl::StrCat(option, " needs a value"));
    }
    absl::Status status;
    if (option == "--nproc") {
      status = ParseCount(option, "ranks", 1, kMaxNproc, value, command_line.nproc);
    } else if (option == "--timeout") {
      status = ParseCount(option, "seconds", 1, kMaxTimeout, value, command_line.timeout_s);
    } else if (option == "--restarts") {
      status = ParseCount(option, "restarts", 0, kMaxRestarts, value, command_line.restarts);
    } else if (option == "--evict-slow") {
      status = ParseFactor(option, value, command_line.evict_slow);
    } else if (option == "--verify-every") {
      status = ParseCount(option, "steps", 1, kMaxVerifyEvery, value, command_line.verify_every);
    } else if (option == "--set") {
      status = ParseSetting(value, command_line);
    } else if (value.empty()) {
      status = InvalidArgument("--run-dir needs a folder's name");
    } else {
      command_line.run_dir = value;
    }
    if (!status.ok()) return status;
  }
  return command_line;
}

}  // namespace lockstep::driver
