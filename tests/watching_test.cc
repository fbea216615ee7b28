// Tests all that watches a run together, in whole programs with a short watchdog, because failures
// here are hangs.

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// Operators with a gradient, called through and through: what hung was the second of them.
constexpr char kStep[] = R"(
local run, torch = require "lockstep.run", require "lockstep.torch"
local w = torch.ones({ 8, 8 }, { requires_grad = true })
local function step()
  for _ = 1, 20 do torch.relu(torch.ones { 4, 8 }:mm(w)):sum():backward() end
end
local function loader() return 1 end
)";

// Runs code after kStep.
Ended RunShortly(const Folder& folder, const std::string& code) {
  folder.Write("train.lua", kStep + code);
  Command command = Lockstep(folder, {"--nproc", "1", "--run-dir", "run", "train.lua"});
  command.timeout = absl::Seconds(30);
  return RunOne(command);
}

void ExpectRefused(const std::string& code, const std::string& complaint) {
  const Ended ended = RunShortly(Folder(), code);
  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, complaint);
}

TEST(Watching, MemoryByLineInsideATraceIsRefused) {
  ExpectRefused(
      "lockstep.profile({}, function()\n"
      "  step()\n"
      "  lockstep.memory_by_line(step)\n"
      "end)\n",
      "train.lua:10: lockstep.memory_by_line: a trace is under way");
}

TEST(Watching, MemoryByLineInsideATracedStepIsRefused) {
  ExpectRefused(
      "lockstep.profile { steps = { 0, 1 } }\n"
      "for _ in run:steps(loader, 3) do lockstep.memory_by_line(step) end\n",
      "lockstep.memory_by_line: a trace is under way");
}

TEST(Watching, ATraceInsideMemoryByLineIsRefused) {
  ExpectRefused(
      "lockstep.memory_by_line(function()\n"
      "  step()\n"
      "  lockstep.profile({}, step)\n"
      "end)\n",
      "train.lua:10: lockstep.profile: memory is being watched by line");
}

TEST(Watching, TracedStepsInsideMemoryByLineAreRefused) {
  ExpectRefused(
      "lockstep.profile { steps = { 0, 1 } }\n"
      "lockstep.memory_by_line(function()\n"
      "  for _ in run:steps(loader, 3) do step() end\n"
      "end)\n",
      "lockstep.profile: memory is being watched by line");
}

TEST(Watching, AfterARefusalBothWorkAndSoDoesEachAfterTheOther) {
  const Folder folder;

  const Ended ended = RunShortly(folder, R"(
for round = 1, 3 do
  local path = lockstep.profile({ path = round .. ".json" }, function()
    assert(not pcall(lockstep.memory_by_line, step))
    step()
  end)
  local report = lockstep.memory_by_line(function()
    assert(not pcall(lockstep.profile, { path = "refused.json" }, step))
    lockstep.memory_by_line(step)
    step()
  end)
  print(round, io.open(path):read("*a"):find("aten::mm", 1, true) ~= nil, report.peak_bytes > 0)
end
)");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, EndsWith("1\ttrue\ttrue\n2\ttrue\ttrue\n3\ttrue\ttrue\n"));
  EXPECT_THAT(folder.List("run"),
              AllOf(Contains("3-rank0.json"), Not(Contains("refused-rank0.json"))));
}

// FLOPs are counted in another way, during either.
TEST(Watching, FlopsAreCountedInsideATraceAndInsideMemoryByLine) {
  const Folder folder;

  const Ended ended = RunShortly(folder, R"(
local function flops() return lockstep.flops(step).total end
local _, traced = lockstep.profile({}, flops)
local _, watched = lockstep.memory_by_line(flops)
print(traced == watched, traced == flops())
)");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("true\ttrue\n"));
}

}  // namespace
}  // namespace lockstep::tests
