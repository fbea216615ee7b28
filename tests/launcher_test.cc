// The launcher: what ends it ends its ranks, and what ranks print passes through it whole.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Ended RunScript(const std::string& code, const std::vector<std::string>& options) {
  return RunOne(RankScript(Folder(), code, options));
}

// --- The launcher is asked to end, or dies -------------------------------------------------------

class Interrupt : public ::testing::TestWithParam<int> {};

TEST_P(Interrupt, EndsEveryRankAndReportsIt) {
  const Folder folder;
  Child run(RankScript(folder,
                       absl::StrCat(kSayPid, "if rank == 1 then forever() end dist.barrier()"),
                       {"--nproc", "3"}));
  const std::vector<pid_t> pids = PidsOf(run, 3);

  const Deadline soon(kSoon);
  run.Send(GetParam());
  const Ended ended = run.Wait();

  EXPECT_FALSE(soon.has_passed());
  EXPECT_EQ(ended.exit_code, 128 + GetParam());
  ExpectOneComplaint(
      ended, absl::StrCat("lockstep: SIG", sigabbrev_np(GetParam()), "; every rank has ended"));
  ExpectGone(pids);
}

INSTANTIATE_TEST_SUITE_P(All, Interrupt, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& info) { return sigabbrev_np(info.param); });

// A stopped rank reacts only to SIGKILL.
TEST(Interrupt, EndsARankThatIsStopped) {
  const Folder folder;
  Child run(RankScript(folder, absl::StrCat(kSayPid, "forever()"), {"--nproc", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);
  kill(pids[1], SIGSTOP);

  run.Send(SIGTERM);

  EXPECT_EQ(run.Wait().exit_code, 128 + SIGTERM);
  ExpectGone(pids);
}

TEST(Interrupt, IsHandledWhileRanksNeverStopPrinting) {
  const Folder folder;
  Child run(RankScript(folder, absl::StrCat(kSayPid, "while true do print(('x'):rep(1000)) end"),
                       {"--nproc", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  const Deadline soon(kSoon);
  run.Send(SIGINT);
  const Ended ended = run.Wait();

  EXPECT_FALSE(soon.has_passed());
  EXPECT_EQ(ended.exit_code, 128 + SIGINT);
  ExpectGone(pids);
}

// A rank, and a process that it has started.
constexpr char kStartAnother[] = "os.execute('sleep 1000 & echo I am 1' .. rank .. ' pid $!')\n";

TEST(Launcher, LeavesNoOrphanWhenKilled) {
  const Folder folder;
  Child run(RankScript(
      folder,
      absl::StrCat(kSayPid, kStartAnother, "if rank == 0 then forever() end dist.barrier()"),
      {"--nproc", "2"}));
  std::vector<pid_t> pids = PidsOf(run, 2);
  for (const int of_rank : {10, 11}) pids.push_back(PidOf(run, of_rank));

  run.Send(SIGKILL);

  EXPECT_EQ(run.Wait().exit_code, 128 + SIGKILL);
  ExpectGone(pids);
}

TEST(Launcher, DoesNotWaitForWhatARankLeavesBehindButEndsIt) {
  const Folder folder;
  Child run(RankScript(folder, kStartAnother, {"--nproc", "2"}));
  const std::vector<pid_t> pids = {PidOf(run, 10), PidOf(run, 11)};

  EXPECT_EQ(run.Wait().exit_code, 0);
  ExpectGone(pids);
}

// Their limit is for collectives. The launcher sees ranks that die.
TEST(Launcher, LetsRanksStartLaterThanTheirLimit) {
  const Folder folder;
  const ReservedPort port;
  const auto start = [&](int rank) {
    Command command = RankScript(folder, "dist.barrier()\n", {"--timeout", "2"});
    command.environment.merge(TorchrunEnvironment(rank, 2, port.number()));
    command.environment["LOCKSTEP_LAUNCHER"] = absl::StrCat(getpid());
    return Child(command);
  };

  std::vector<Child> ranks;
  ranks.push_back(start(0));
  // Until another run has hung for longer.
  EXPECT_EQ(RunScript("if rank == 1 then forever() end dist.barrier()",
                      {"--nproc", "2", "--timeout", "3"})
                .exit_code,
            3);
  ranks.push_back(start(1));

  for (const Ended& ended : WaitForAll(ranks, {"rank 0", "rank 1"}))
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
}

// The store of a few hundred ranks has more connections than the usual limit of 1,024.
TEST(Launcher, LetsProcessesOpenAsManyFilesAsTheyMay) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {.rlim_cur = 24, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const Ended ended = RunScript(R"lua(
    for line in io.lines("/proc/self/limits") do
      local may, at_most = line:match("^Max open files%s+(%d+)%s+(%d+)")
      if may then print(tonumber(may) == math.min(at_most, 2 ^ 20) and "as many as it may" or line) end
    end)lua",
                                {"--nproc", "2"});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(absl::StrSplit(ended.out, '\n'),
              ::testing::IsSupersetOf({"as many as it may", "[rank 1] as many as it may"}));
}

// SIGXFSZ would end the rank with no message that names the file.
TEST(Launcher, AFileBeyondTheLimitOfFilesIsAnError) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Ended ended = RunScript(R"lua(
    local data, torch = require "lockstep.data", require "lockstep.torch"
    local path = require("lockstep.run").dir .. "/long.safetensors"
    data.save_safetensors(path, { x = torch.zeros { 2 ^ 20 } }))lua",
                                {"--nproc", "1"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("long.safetensors"), HasSubstr("File too large")));
}

TEST(Launcher, EndsWithItsRanksWithoutAReaderOfTheOutput) {
  const Folder folder;
  Child run(RankScript(folder, absl::StrCat(kSayPid, "while true do print('more') end"),
                       {"--nproc", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  run.CloseOutput();

  EXPECT_EQ(run.Wait().exit_code, 128 + SIGPIPE);
  ExpectGone(pids);
}

// --- Output --------------------------------------------------------------------------------------

TEST(Output, HasTheRankBeforeEachLineAndWholeLines) {
  constexpr int kLines = 2000;
  const Ended ended = RunScript(
      "local letter = string.char(97 + rank)\n"
      "dist.barrier()\n"
      "for i = 1, 2000 do print(letter:rep(150)) end\n"
      "print(letter:rep(100000))\n",
      {"--nproc", "3"});

  int num_lines[3] = {0, 0, 0};
  for (const auto& line : absl::StrSplit(ended.out, '\n', absl::SkipEmpty())) {
    const size_t rank = absl::StartsWith(line, "[rank ") ? static_cast<size_t>(line[6] - '0') : 0;
    ASSERT_LT(rank, 3U) << line;
    const std::string text(rank == 0 ? line : line.substr(9));
    ASSERT_TRUE(text.size() == 150 || text.size() == 100000) << line;
    ASSERT_EQ(text.find_first_not_of(static_cast<char>('a' + rank)), std::string::npos) << line;
    ++num_lines[rank];
  }
  for (const int lines : num_lines) EXPECT_EQ(lines, kLines + 1);
}

// A fifo for a process to write to, which the test reads when it likes.
class Fifo {
 public:
  explicit Fifo(const Folder& folder) : path_(folder.Path("fifo")) {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    fd_ = open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  ~Fifo() { close(fd_); }
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;

  // `command`, with the fifo for its stderr.
  Command TakeErrors(Command command) const {
    command.argv.insert(command.argv.begin(), {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>fifo"});
    return command;
  }

  // A pipe that is full may hold less than its size: a small write leaves a part of its page.
  void WaitUntilFull() const {
    pollfd room = {fd_, POLLOUT, 0};
    while (poll(&room, 1, 0) > 0 && (room.revents & POLLOUT) != 0) {
    }
  }

  // Returns the bytes that can be read now.
  std::string Read() const {
    std::string text;
    char buffer[65536];
    for (ssize_t size; (size = read(fd_, buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<size_t>(size));
    return text;
  }

 private:
  std::string path_;
  int fd_ = -1;
};

constexpr char kFlood[] = "while true do io.stderr:write(('x'):rep(1000), '\\n') end";

TEST(UnreadOutput, DoesNotKeepASignalFromTheLauncher) {
  const Folder folder;
  const Fifo fifo(folder);
  Child run(fifo.TakeErrors(RankScript(folder, absl::StrCat(kSayPid, kFlood), {"--nproc", "2"})));
  const std::vector<pid_t> pids = PidsOf(run, 2);
  fifo.WaitUntilFull();

  const Deadline soon(kSoon);
  run.Send(SIGTERM);

  EXPECT_EQ(run.Wait().exit_code, 128 + SIGTERM);
  EXPECT_FALSE(soon.has_passed());
  ExpectGone(pids);
}

TEST(UnreadOutput, DoesNotKeepADeathFromTheLauncher) {
  const Folder folder;
  const Fifo fifo(folder);
  Child run(fifo.TakeErrors(RankScript(folder, absl::StrCat(kSayPid, kFlood), {"--nproc", "2"})));
  const std::vector<pid_t> pids = PidsOf(run, 2);
  fifo.WaitUntilFull();

  kill(pids[1], SIGKILL);

  EXPECT_TRUE(WaitUntilGone(pids[0]));
  EXPECT_EQ(run.Wait().exit_code, 128 + SIGKILL);
}

// Two megabytes: more than the pipes and the launcher hold.
TEST(UnreadOutput, IsCompleteOnceItIsRead) {
  const Folder folder;
  const Fifo fifo(folder);
  Child run(fifo.TakeErrors(RankScript(
      folder, "for i = 1, 2000 do io.stderr:write(('x'):rep(999), '\\n') end", {"--nproc", "2"})));
  fifo.WaitUntilFull();

  std::string text;
  while (Count(text, "\n") < 4000) text += fifo.Read();

  EXPECT_EQ(run.Wait().exit_code, 0);
}

TEST(Output, KeepsItsStreamAndGetsItsLastLineEnded) {
  const Ended ended =
      RunScript("io.stdout:write('to stdout') io.stderr:write('to stderr')", {"--nproc", "2"});

  EXPECT_THAT(ended.out,
              AnyOf("to stdout\n[rank 1] to stdout\n", "[rank 1] to stdout\nto stdout\n"));
  EXPECT_THAT(ended.err,
              AnyOf("to stderr\n[rank 1] to stderr\n", "[rank 1] to stderr\nto stderr\n"));
}

// A process in a session of its own outlives the run, and holds the stream open.
TEST(Output, IsCompleteIfAnotherProcessKeepsTheStream) {
  const Folder folder;
  Child run(RankScript(folder,
                       "os.execute('setsid sleep 1000 & echo I am ' .. rank .. ' pid $!')\n"
                       "if rank == 1 then io.stdout:write('the last line') end",
                       {"--nproc", "2"}));
  const std::vector<pid_t> pids = PidsOf(run, 2);

  const Ended ended = run.Wait();

  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.out, HasSubstr("[rank 1] the last line\n"));
  for (const pid_t pid : pids) kill(pid, SIGKILL);
}

TEST(Output, OfADyingRankIsNotLost) {
  const Ended ended = RunScript(
      "if rank == 0 then dist.barrier() end\n"
      "io.stdout:setvbuf('full')\n"
      "for i = 1, 5000 do print('line ' .. i) end\n"
      "local file = io.open('notes', 'w') file:write('kept')\n"
      "error('after the last line')",
      {"--nproc", "2"});

  EXPECT_THAT(ended.out, HasSubstr("[rank 1] line 5000\n"));
  ExpectOneComplaint(ended, "after the last line");
}

}  // namespace
}  // namespace lockstep::tests
