#include "tests/support/rank_script.h"

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep::tests {
namespace {

constexpr char kPrelude[] = R"(
local dist, torch, ffi = require "lockstep.distributed", require "lockstep.torch", require "ffi"
ffi.cdef "int getpid(void); int kill(int, int); void _exit(int);"
local rank, C = dist.rank(), ffi.C
local function forever() io.popen("exec sleep 1000"):read("*a") end
local pids = dist.all_gather_object(C.getpid())
local function wait_for_end(of) repeat until C.kill(pids[of + 1], 0) ~= 0 end
)";

}  // namespace

Command RankScript(const Folder& folder, const std::string& code,
                   const std::vector<std::string>& options) {
  folder.Write("train.lua", absl::StrCat(kPrelude, code));
  std::vector<std::string> arguments = options;
  arguments.push_back("train.lua");
  return Lockstep(folder, arguments);
}

pid_t PidOf(Child& run, int who) {
  const std::string line = run.WaitForLine(absl::StrCat("I am ", who, " pid "));
  // An exception fails the test. A number that is no process would not: kill(-1, ...) ends all of
  // the user's.
  if (line.empty()) throw std::runtime_error(absl::StrCat("process ", who, " did not say its id"));
  const pid_t pid = std::stoi(line.substr(line.rfind(' ') + 1));
  if (pid <= 0) throw std::runtime_error(absl::StrCat("no id of a process: ", line));
  return pid;
}

std::vector<pid_t> PidsOf(Child& run, int num_ranks) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < num_ranks; ++rank) pids.push_back(PidOf(run, rank));
  return pids;
}

void WaitUntilTaken(pid_t pid, int signal) {
  for (bool is_pending = true; is_pending;) {
    std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
    uint64_t pending = 0;
    for (std::string word; status >> word;) {
      if (word == "ShdPnd:") status >> std::hex >> pending;
    }
    is_pending = (pending >> (signal - 1) & 1) != 0;
  }
}

void ExpectGone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) EXPECT_TRUE(pid > 0 && WaitUntilGone(pid)) << "process " << pid;
}

}  // namespace lockstep::tests
