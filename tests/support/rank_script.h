// Scripts for tests that end ranks: they print process ids, and wait where a test can kill them.
//
//    Child run(RankScript(folder, absl::StrCat(kSayPid, "forever()"), {"--nproc", "2"}));
//    const std::vector<pid_t> pids = PidsOf(run, 2);
//    kill(pids[1], SIGKILL);
//    ...
//    ExpectGone(pids);
//
// A script may use `dist`, `torch` and `rank`; `C`, system calls through LuaJIT's ffi; forever(),
// which never returns and waits in no collective; and wait_for_end(rank).

#ifndef LOCKSTEP_TESTS_SUPPORT_RANK_SCRIPT_H_
#define LOCKSTEP_TESTS_SUPPORT_RANK_SCRIPT_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {

// The maximum time for a run to end after one rank has failed: far below any collective's timeout.
inline constexpr absl::Duration kSoon = absl::Seconds(10);

// Writes the script train.lua into the folder.
Command RankScript(const Folder& folder, const std::string& code,
                   const std::vector<std::string>& options);

// Code that prints the line that PidsOf reads.
inline constexpr char kSayPid[] = "print('I am ' .. rank .. ' pid ' .. C.getpid())\n";

// Return the process that printed "I am <who> pid <pid>", and the processes of ranks 0 to num_ranks
// - 1.
pid_t PidOf(Child& run, int who);
std::vector<pid_t> PidsOf(Child& run, int num_ranks);

// Waits until each process has ended, and fails the test for those that do not end.
void ExpectGone(const std::vector<pid_t>& pids);

// Blocks until the process has taken the signal that was sent to it: only then can another one of
// its kind come.
void WaitUntilTaken(pid_t pid, int signal);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_RANK_SCRIPT_H_
