// Tests the ports that a run opens, and how it prints text from the network.

#include <dirent.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The sockets that a process has open, as /proc/net/tcp numbers them.
std::set<std::string> SocketsOf(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  std::set<std::string> sockets;
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return sockets;
  while (const dirent* entry = readdir(entries)) {
    char target[64] = "";
    const std::string path = absl::StrCat(folder, "/", entry->d_name);
    const ssize_t size = readlink(path.c_str(), target, sizeof(target) - 1);
    const std::string link(target, size > 0 ? static_cast<size_t>(size) : 0);
    if (absl::StartsWith(link, "socket:[")) sockets.insert(link.substr(8, link.size() - 9));
  }
  closedir(entries);
  return sockets;
}

// The addresses at which these processes listen for TCP, as the kernel writes them:
// "0100007F" is 127.0.0.1.
std::set<std::string> ListeningAddresses(const std::vector<pid_t>& pids) {
  std::set<std::string> sockets;
  for (const pid_t pid : pids) sockets.merge(SocketsOf(pid));
  std::set<std::string> addresses;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      const bool listens = state == "0A";
      if (listens && sockets.count(inode) > 0) addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

// Makes the ranks talk by everything they have: a collective, and sockets of a lockstep loop.
const std::string kMeet = absl::StrCat(
    "dist.barrier()\nfor _ in require('lockstep.sharding').lockstep(function() end) do end\n",
    kSayPid, "forever()");

constexpr char kLoopback[] = "0100007F";

TEST(Network, ARunOfOneHostListensOnLoopbackAlone) {
  const Folder folder;
  Child run(RankScript(folder, kMeet, {"--nproc", "2"}));
  std::vector<pid_t> pids = PidsOf(run, 2);
  pids.push_back(run.pid());

  EXPECT_THAT(ListeningAddresses(pids), ElementsAre(kLoopback));
}

TEST(Network, SoDoTheRanksOfALauncherThatNamesLoopback) {
  const Folder folder;
  const ReservedPort port;
  std::vector<Child> ranks = StartRanks(2, RankScript(folder, kMeet, {}), port);
  const std::vector<pid_t> pids = {PidOf(ranks[0], 0), PidOf(ranks[1], 1)};

  EXPECT_THAT(ListeningAddresses(pids), ElementsAre(kLoopback));
}

TEST(Network, AReasonFromAnotherRankIsPrintedWithoutControlCharacters) {
  const Folder folder;
  const Command command =
      RankScript(folder, "if rank == 1 then error('\\27[31mred\\r') end dist.barrier()", {});
  Command launched = command;
  launched.argv.insert(launched.argv.begin() + 1, {"--nproc", "2"});
  std::vector<Ended> ends = RunRanks(2, command);
  ends.push_back(RunOne(launched));

  for (const Ended& ended : ends) {
    EXPECT_THAT(ended.err, AllOf(HasSubstr("\\x1b[31mred\\x0d"), Not(HasSubstr("\x1b")),
                                 Not(HasSubstr("\r"))));
  }
}

}  // namespace
}  // namespace lockstep::tests
