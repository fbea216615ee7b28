// The command line of `lockstep`.
//
//    lockstep [--nproc N] [--run-dir DIR] [--timeout SECONDS] [--restarts N] [--evict-slow F]
//             [--verify-every N] [--debug-collectives] [--dry-run] [SCRIPT [--set key=value]...
//             [ARGUMENT]...]
//    lockstep --list [FOLDER]
//    lockstep --version
//
// Options stand before SCRIPT or after it; `--` ends them. The remaining arguments after SCRIPT
// belong to the script, as `run.args`.

#ifndef LOCKSTEP_DRIVER_SETTINGS_COMMAND_LINE_H_
#define LOCKSTEP_DRIVER_SETTINGS_COMMAND_LINE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::driver {

struct CommandLine {
  std::optional<int> nproc;  // ranks to start on this machine; not given: one for each GPU, or 2
  std::string script;        // empty: an interactive session
  std::string run_dir;       // empty: a new one, runs/<script>-<time>-<random>
  std::optional<int> timeout_s;      // of the meeting of ranks and of each collective
  std::optional<int> restarts;       // how often the ranks are started again after a failure
  std::optional<double> evict_slow;  // how many times as long as the median a rank may work
  std::optional<int> verify_every;   // steps from one comparison of replicas to the next
  bool debug_collectives = false;    // ranks compare each collective before they enter it
  bool dry_run = false;              // one step of rank 0 alone, and what it takes
  std::vector<std::pair<std::string, std::string>> settings;  // --set key=value, in order
  std::vector<std::string> script_arguments;
  bool help = false;
  bool version = false;
  bool list = false;  // list the scripts of the folder `script`, or of "scripts"
};

// The text of `--help`. `./run --help` reads it from command_line.cc, and needs no build.
extern const char kUsage[];

// Returns `text` as one line of printable characters: "\n" for a line end, "\x1b" for an escape.
// Every argument in a message must pass through it.
std::string OneLine(const std::string& text);

// Parses `arguments` (without the program's name). Returns InvalidArgument with one sentence that
// names the argument and the expected value.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_SETTINGS_COMMAND_LINE_H_
