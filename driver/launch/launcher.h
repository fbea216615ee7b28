// Starts the ranks of a run on this machine and stays until they have ended.
//
// The launcher hosts the run's store, so that it outlives a dying rank and keeps its last message.
// When a rank fails, the launcher tells the others through the store, asks them to end, and kills
// them within seconds if they do not. It prints the first cause once. With --restarts it then
// starts all ranks again, in the same run's folder. Ctrl-C and SIGTERM end every rank. If the
// launcher itself is killed, its ranks and their children die too: each rank asks the kernel for a
// signal at its parent's death.
//
// Rank 0 writes to this terminal. Each line of another rank is printed behind "[rank 1] ". If the
// output is not a terminal, lines of ranks are never mixed. If the reader of the output stops, such
// as a paused `less`, ranks that print wait; the launcher still handles signals and deaths.

#ifndef LOCKSTEP_DRIVER_LAUNCH_LAUNCHER_H_
#define LOCKSTEP_DRIVER_LAUNCH_LAUNCHER_H_

#include "driver/settings/command_line.h"

namespace lockstep::driver {

// The limit of a rank's waits for others if --timeout is not given.
inline constexpr int kDefaultTimeoutSeconds = 120;

// The environment variable with the launcher's process id. A rank that has it lets the launcher
// print its last message.
inline constexpr char kLauncherVariable[] = "LOCKSTEP_LAUNCHER";

// Runs the ranks and returns the run's exit code: 0 for success, otherwise the code of the rank
// that failed first, with 128 + n for signal n. If signal n interrupted the run, returns 128 + n.
// With `restarts` the ranks are started again after a failure (restarts.h), each time with a store,
// ports and keys of their own; the code is then the last start's.
int Launch(CommandLine command_line, int nproc);

// Call it in a rank that a launcher started: the rank and its process group die with the launcher.
// Throws c10::Error if the launcher is dead already.
void DieWithLauncher();

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_LAUNCHER_H_
