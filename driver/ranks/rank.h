// One rank of a run: meets the others, runs the script, tells the run how it ended.

#ifndef LOCKSTEP_DRIVER_RANKS_RANK_H_
#define LOCKSTEP_DRIVER_RANKS_RANK_H_

#include "driver/launch/command_line.h"
#include "driver/launch/environment.h"

namespace lockstep::driver {

// Runs command_line.script, or an interactive session where there is none, and ends the process:
// with 0, with 1 where this rank or another failed, or with what the script gave os.exit.
[[noreturn]] void RunRank(const CommandLine& command_line, const RankEnvironment& environment);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_RANK_H_
