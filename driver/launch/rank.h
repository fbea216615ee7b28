// Runs one rank: connects to the other ranks, runs the script, and reports how it ended.

#ifndef LOCKSTEP_DRIVER_LAUNCH_RANK_H_
#define LOCKSTEP_DRIVER_LAUNCH_RANK_H_

#include "driver/settings/command_line.h"
#include "driver/settings/environment.h"

namespace lockstep::driver {

// Runs command_line.script, or an interactive session without a script, and ends the process. The
// exit code is 0, 1 if this rank or another failed, or the script's argument of os.exit.
[[noreturn]] void RunRank(const CommandLine& command_line, const RankEnvironment& environment);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_RANK_H_
