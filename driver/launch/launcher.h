// Starts the ranks of a run on this machine and stays until they have ended.
//
// The launcher hosts the run's store, so that what a dying rank had to say outlives it. When a rank
// fails, the others are told through the store, and asked, then made, to end within seconds; the
// first cause is printed once. Ctrl-C and SIGTERM end every rank. A launcher that is itself killed
// takes its ranks along, and what they have started: each asks the kernel for a signal at its
// parent's death.
//
// Rank 0 writes to this terminal; each line of another rank is printed behind "[rank 1] ". Where
// the output is no terminal, no line of one rank breaks another's. An output that nobody reads, a
// paused `less` say, holds back ranks that print; the launcher goes on hearing signals and deaths.

#ifndef LOCKSTEP_DRIVER_LAUNCH_LAUNCHER_H_
#define LOCKSTEP_DRIVER_LAUNCH_LAUNCHER_H_

#include "driver/launch/command_line.h"

namespace lockstep::driver {

// Set in each rank's environment to the launcher's process id: such a rank leaves its last words to
// the launcher.
inline constexpr char kLauncherVariable[] = "LOCKSTEP_LAUNCHER";

// Exit code of the run: 0; that of the rank that failed first, 128 + n where signal n killed it; or
// 128 + n where signal n interrupted the run.
int Launch(const CommandLine& command_line, int nproc);

// For a rank that a launcher started: dies with it, its process group too. Throws c10::Error where
// it is dead already.
void DieWithLauncher();

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_LAUNCHER_H_
