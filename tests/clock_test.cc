// A run while the machine's clock jumps by an hour, forward and back, at every reading: as NTP or
// an administrator sets it, only more often. No wait is shorter or longer for that.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;

Ended RunWithJumpingClock(const Folder& folder, const std::string& code, int num_ranks,
                          const std::string& timeout) {
  Command command =
      RankScript(folder, code, {"--nproc", absl::StrCat(num_ranks), "--timeout", timeout});
  command.environment["LD_PRELOAD"] = DataFile("tests/support/jumping_clock.so");
  return RunOne(command);
}

TEST(JumpingClock, IsWhatTheProgramReads) {
  const Ended ended =
      RunWithJumpingClock(Folder(),
                          "local least, most = os.time(), os.time()\n"
                          "for _ = 1, 100 do\n"
                          "  local now = os.time()\n"
                          "  least, most = math.min(least, now), math.max(most, now)\n"
                          "end\n"
                          "print('jumps by', most - least >= 7200)\n",
                          1, "60");

  EXPECT_THAT(ended.out, HasSubstr("jumps by\ttrue")) << ended.err;
}

// Sockets, Gloo, the store, the lockstep loop, a loader with workers, and a saved state.
TEST(JumpingClock, ThreeRanksTrainAndSave) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&lines, "{\"x\": ", i, "}\n");
  folder.Write("train.jsonl", lines);
  folder.Write("double.lua", "return function(sample) return { x = 2 * sample.x } end\n");
  const Ended ended = RunWithJumpingClock(folder,
                                          R"(
local data, nn, optim = require "lockstep.data", require "lockstep.nn", require "lockstep.optim"
local log, sharding = require "lockstep.log", require "lockstep.sharding"
local run = require "lockstep.run"
local loader = data.loader { source = data.source("train.jsonl"), map = "double", workers = 2, seed = 1, epochs = 1 }
local model = sharding.data_parallel(nn.Linear(4, 1))
local sgd = optim.SGD(model:parameters(), { lr = 1e-3 })
run:state({ model = model, sgd = sgd, loader = loader }, { every = 5 })
local steps, guard = 0, sharding.guard()
for step, sample in run:steps(loader) do
  local loss = model(torch.full({ 1, 4 }, sample.x)):mean()
  loss:backward()
  sgd:step() sgd:zero_grad()
  for i = 1, 20 do
    if rank == (step + i) % 3 then torch.randn(200, 200):matmul(torch.randn(200, 200)) end
    guard:check("step " .. step, i)
  end
  log.step { loss = loss }
  steps = steps + 1
end
print("rank", rank, "steps", steps)
)",
                                          3, "60");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(ended.out, HasSubstr(absl::StrCat("rank\t", rank, "\tsteps\t20"))) << ended.err;
}

// Two seconds pass on the clock that does not jump. The line of rank 1 comes from another thread,
// which waits for it.
TEST(JumpingClock, AHangIsReportedWithTheLineWhereARankIs) {
  const Ended ended = RunWithJumpingClock(
      Folder(),
      "if rank == 1 then local x = torch.ones(4) while true do x = x + 1 end end\n"
      "dist.barrier()\n",
      2, "2");

  constexpr int kHang = 3;
  EXPECT_EQ(ended.exit_code, kHang) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("barrier of world has waited 2."));
  EXPECT_THAT(ended.err, HasSubstr("\n  rank 1: in no collective, now at train.lua:8"));
}

}  // namespace
}  // namespace lockstep::tests
