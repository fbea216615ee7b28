// Scripts for tests that end ranks: who runs, as which process, and what may be done to it.
//
//   Child run(RankScript(folder, absl::StrCat(kSayPid, "forever()"), {"--nproc", "2"}));
//   const std::vector<pid_t> pids = PidsOf(run, 2);
//   kill(pids[1], SIGKILL);
//   ...
//   ExpectGone(pids);
//
// A script finds `dist` and `torch`; `rank`; `C`, the system's calls through LuaJIT's ffi;
// forever(), which never returns and waits in no collective; and wait_for_end(rank).

#ifndef LOCKSTEP_TESTS_SUPPORT_RANK_SCRIPT_H_
#define LOCKSTEP_TESTS_SUPPORT_RANK_SCRIPT_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {

// What a run may take to end once one rank has failed: long before any timeout of a collective.
inline constexpr absl::Duration kSoon = absl::Seconds(10);

// Writes the script train.lua into the folder.
Command RankScript(const Folder& folder, const std::string& code,
                   const std::vector<std::string>& options);

// Code for a line that PidsOf reads.
inline constexpr char kSayPid[] = "print('I am ' .. rank .. ' pid ' .. C.getpid())\n";

// The process that printed "I am <who> pid <pid>", and those of ranks 0 to num_ranks - 1.
pid_t PidOf(Child& run, int who);
std::vector<pid_t> PidsOf(Child& run, int num_ranks);

// Waits until each has ended, and fails the test for those that do not.
void ExpectGone(const std::vector<pid_t>& pids);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_RANK_SCRIPT_H_
