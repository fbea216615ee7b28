// Saves in the background, on disks that are slow or full: run:state(objects, { every = n, async =
// true }).

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Command Train(const Folder& folder, int nproc, const std::vector<std::string>& settings) {
  Command command = TrainCommand(folder, {"tests/scripts/resume.lua", nproc, settings});
  command.environment["LD_PRELOAD"] = DataFile("tests/support/faulty_disk.so");
  command.environment["LOCKSTEP_FAULTY_DISK"] = folder.path();
  return command;
}

// While it lives, no file of tensors comes to the disk, until Release.
class HeldDisk {
 public:
  explicit HeldDisk(const Folder& folder) : path_(folder.Path("held")) {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
  }
  ~HeldDisk() {
    std::remove(path_.c_str());
    if (fd_ >= 0) close(fd_);
  }
  void Release() { fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC); }

 private:
  std::string path_;
  int fd_ = -1;
};

// The ranks go on with their steps while the state is written, and the state before it stays the
// newest.
TEST(AsyncState, AKillDuringTheWriteLeavesThePreviousStateAsTheNewest) {
  for (const int nproc : {1, 2}) {
    const Folder folder;
    const std::vector<std::string> expected = FinalBits(RunOne(Train(Folder(), nproc, {})));
    ASSERT_THAT(FinalBits(RunOne(Train(folder, nproc, {"steps=4"}))), SizeIs(nproc));
    {
      const HeldDisk disk(folder);
      Child run(Train(folder, nproc, {"every=4", "async=true"}));
      const std::vector<pid_t> pids = PidsOf(run, nproc);
      run.WaitForLine("step 10");

      kill(nproc == 1 ? run.pid() : pids[1], SIGKILL);
      EXPECT_EQ(run.Wait().exit_code, 128 + SIGKILL);
      ExpectGone(pids);
      EXPECT_THAT(folder.List("out/state"),
                  ElementsAre("step-00000003", "step-00000004", "step-00000008.lockstep-part"));
    }

    const Ended resumed = RunOne(Train(folder, nproc, {"every=4", "async=true"}));

    EXPECT_THAT(resumed.out, HasSubstr("after 4 steps"));
    EXPECT_EQ(resumed.err, "");
    EXPECT_EQ(FinalBits(resumed), expected);
    EXPECT_THAT(folder.List("out/state"), ElementsAre("step-00000008", "step-00000012"));
  }
}

TEST(AsyncState, SigtermAndTheEndOfTheLoopWaitForTheWrite) {
  for (const bool is_asked : {true, false}) {
    const Folder folder;
    HeldDisk disk(folder);
    Child run(Train(folder, 2, {"every=4", "async=true", is_asked ? "steps=100000" : "steps=7"}));
    PidsOf(run, 2);
    run.WaitForLine("step 6");  // the state after 4 steps is being written

    if (is_asked) {
      run.Send(SIGTERM);
      WaitUntilTaken(run.pid(), SIGTERM);
    }
    EXPECT_THAT(folder.List("out/state"), ElementsAre("step-00000004.lockstep-part"));
    disk.Release();
    const Ended ended = run.Wait();

    EXPECT_EQ(ended.exit_code, is_asked ? 128 + SIGTERM : 0) << ended.err;
    const std::vector<std::string> states = folder.List("out/state");
    ASSERT_THAT(states, SizeIs(2));
    if (!is_asked) {
      EXPECT_THAT(states, ElementsAre("step-00000004", "step-00000007"));
    }
  }
}

TEST(AsyncState, ASecondSaveWaitsAndTheMetricsSaySo) {
  const Folder folder;
  HeldDisk disk(folder);
  Child run(Train(folder, 2, {"every=4", "async=true"}));
  run.WaitForLine("step 7");
  disk.Release();
  EXPECT_EQ(run.Wait().exit_code, 0);

  for (const auto& record : ReadMetrics(folder, "out/metrics.jsonl")) {
    // Steps 4 to 7 go on whatever the disk does.
    if (record.count("saving_s") > 0) {
      EXPECT_EQ(record.at("step"), "8");
    }
  }
}

// The same with a save that the ranks wait for.
TEST(AsyncState, AFullDiskIsAnErrorOfTheNextStepOrSave) {
  for (const auto& [nproc, async] :
       {std::pair(1, "async=false"), {1, "async=true"}, {2, "async=false"}, {2, "async=true"}}) {
    SCOPED_TRACE(absl::StrCat(nproc, " ranks, ", async));
    const Folder folder;
    const std::vector<std::string> expected = FinalBits(RunOne(Train(Folder(), nproc, {})));
    folder.Write("full", "");

    const Ended ended = RunOne(Train(folder, nproc, {"every=4", async}));

    EXPECT_EQ(ended.exit_code, 1);
    ExpectOneComplaint(ended, ": No space left on device");
    EXPECT_THAT(ended.err, HasSubstr("out/state/step-00000004.lockstep-part/"));
    if (async == std::string("async=true")) {
      EXPECT_THAT(ended.err, HasSubstr("run:save: the state after 4 steps was not saved: "));
    }
    EXPECT_THAT(LinesWith(ended.out, "step 8"), IsEmpty());
    std::remove(folder.Path("full").c_str());
    EXPECT_EQ(FinalBits(RunOne(Train(folder, nproc, {"every=4", async}))), expected);
  }
}

// A break leaves the loop, and the script ends.
TEST(AsyncState, ASaveThatIsUnderWayAtTheEndOfTheScriptIsWhole) {
  const Folder folder;
  HeldDisk disk(folder);
  Command command = RankScript(folder,
                               "local run = require 'lockstep.run'\n"
                               "run:state({ best = {} }, { every = 2, async = true })\n"
                               "for step in run:steps(function() return true end, 9) do\n"
                               "if step == 3 then break end end\nprint('left')",
                               {"--nproc", "2", "--run-dir", "out"});
  command.environment = Train(folder, 2, {}).environment;
  Child run(command);

  run.WaitForLine("left");
  EXPECT_THAT(folder.List("out/state"), ElementsAre("step-00000002.lockstep-part"));
  disk.Release();

  EXPECT_EQ(run.Wait().exit_code, 0);
  EXPECT_THAT(folder.List("out/state"), ElementsAre("step-00000002"));
}

}  // namespace
}  // namespace lockstep::tests
