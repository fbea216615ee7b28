// Modules on ranks of their own, as whole runs: scripts/mimo_digits.lua and finetune.lua for a few
// steps draw the curve of one rank, and a run that fails names the cause.

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kSteps = 3;
constexpr double kTolerance = 1e-9;  // relative

// Loss and norm of each step, and the accuracy at the end.
std::vector<double> Train(int nproc, int vision_ranks, bool scalable_reads = false) {
  const Folder folder;
  Command command = TrainCommand(
      folder,
      {"scripts/mimo_digits.lua",
       nproc,
       {absl::StrCat("steps=", kSteps), "held_out=50", absl::StrCat("vision_ranks=", vision_ranks),
        absl::StrCat("scalable_reads=", scalable_reads ? "true" : "false")}});
  // The digits are in ~/.cache, or in LOCKSTEP_CACHE; Bazel hides HOME from its tests.
  if (getenv("HOME") == nullptr) command.environment["HOME"] = getpwuid(getuid())->pw_dir;
  const Ended ended = RunOne(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(absl::StrCat("world of ", nproc, " rank")));
  std::vector<double> curve;
  for (const auto& object : ReadMetrics(folder, "out/metrics.jsonl")) {
    for (const char* name : {"loss", "grad_norm", "accuracy"}) {
      const auto it = object.find(name);
      if (it != object.end()) curve.push_back(strtod(it->second.c_str(), nullptr));
    }
  }
  return curve;
}

TEST(MimoDigits, ModulesOnTheirOwnRanksLearnAsOneRankDoes) {
  const std::vector<double> alone = Train(1, 1);
  ASSERT_THAT(alone, SizeIs(2 * kSteps + 1));
  EXPECT_LT(alone[2 * (kSteps - 1)], alone[0]);

  const struct {
    int nproc, vision_ranks;
    bool scalable_reads;
  } grids[] = {{2, 1, false}, {3, 1, false}, {3, 2, false},
               {4, 1, false}, {3, 2, true},  {4, 1, true}};
  for (const auto& [nproc, vision_ranks, scalable_reads] : grids) {
    const std::vector<double> curve = Train(nproc, vision_ranks, scalable_reads);

    ASSERT_THAT(curve, SizeIs(alone.size()));
    for (size_t i = 0; i < curve.size(); ++i) {
      EXPECT_NEAR(curve[i], alone[i], kTolerance * alone[i])
          << "number " << i << " on " << nproc << " ranks, vision on " << vision_ranks
          << (scalable_reads ? ", each reads its part" : "");
    }
  }
}

// --- A model of Hugging Face, by its parts
// --------------------------------------------------------

// scripts/finetune.lua with `vision_ranks`, or 0: the whole model on each rank. `parallel`: the end
// of a setting, as ".pp=2" or "=fully_shard".
Command TuneVl(const std::string& out, const Folder& folder, int nproc, int vision_ranks,
               const std::string& parallel, const std::string& lora_r = "0") {
  Command command = TrainCommand(
      folder,
      {.script = "scripts/finetune.lua",
       .nproc = nproc,
       .settings = {"model=model", "data=pictures.jsonl", absl::StrCat("steps=", kSteps),
                    "samples_per_step=10", "lr=0.001", "warmup_steps=0", "precision=float64",
                    "held_out=5", "answers=0", "save_every=1", absl::StrCat("lora.r=", lora_r),
                    absl::StrCat("vision_ranks=", vision_ranks), "parallel" + parallel},
       .run_dir = out});
  command.timeout = absl::Minutes(4);
  return command;
}

// Losses and norms of each step, and the losses of the held-out conversations.
std::vector<double> CurveOf(const Folder& folder, const std::string& out) {
  std::vector<double> curve;
  for (const auto& object : ReadMetrics(folder, out + "/metrics.jsonl")) {
    for (const char* name : {"loss", "grad_norm"}) {
      const auto it = object.find(name);
      if (it != object.end()) curve.push_back(strtod(it->second.c_str(), nullptr));
    }
  }
  return curve;
}

void MakeVl(const Folder& folder) {
  const Ended made = RunOne(Lockstep(
      folder, {"--nproc", "1", "--run-dir", "made", DataFile("tests/scripts/tiny_vision_model.lua"),
               DataFile("driver/text/testdata/qwen2.json"), DataFile("driver/images/testdata"),
               folder.path()}));
  ASSERT_EQ(made.exit_code, 0) << made.err;
}

void ExpectNear(const std::vector<double>& curve, const std::vector<double>& alone,
                const std::string& what) {
  ASSERT_THAT(curve, SizeIs(alone.size())) << what;
  for (size_t i = 0; i < curve.size(); ++i) {
    EXPECT_NEAR(curve[i], alone[i], kTolerance * alone[i]) << "number " << i << ", " << what;
  }
}

// Compares the files' tensors with those of alone/model, and with the model before training.
void ExpectSameModel(const Folder& folder, const std::string& out) {
  folder.Write("compare.lua", absl::StrCat(R"(local data = require "lockstep.data"
local function read(path) return data.safetensors(path .. "/model.safetensors") end
local start, first, count = read "model", read "alone/model", 0
for name, value in pairs((read ")",
                                           out, R"(/model")) do
  local far = (first[name] - start[name]):abs():max():item()
  assert((value - first[name]):abs():max():item() <= 1e-9 and far > 1e-5, name)
  count = count + 1
end
for _ in pairs(first) do count = count - 1 end
assert(count == 0)
)"));
  const Ended compared = RunOne(Lockstep(folder, {"--nproc", "1", "compare.lua"}));
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
}

// One in five conversations has no picture, so that a rank of the tower may have none.
TEST(MimoVl, ATowerOnRanksOfItsOwnTrainsAsTheModelOnOneRankDoes) {
  const Folder folder;
  MakeVl(folder);
  const Ended one = RunOne(TuneVl("alone", folder, 1, 0, "=data_parallel"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<double> alone = CurveOf(folder, "alone");
  ASSERT_THAT(alone, SizeIs(2 * kSteps + 2));

  const struct {
    int nproc, vision_ranks;
    const char* parallel;
  } grids[] = {
      {2, 1, "=data_parallel"}, {4, 2, "=fully_shard"}, {4, 3, "=data_parallel"}, {3, 1, ".pp=2"}};
  for (const auto& [nproc, vision_ranks, parallel] : grids) {
    const std::string out = absl::StrCat("out", nproc, vision_ranks);
    const Ended ended = RunOne(TuneVl(out, folder, nproc, vision_ranks, parallel));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    ExpectNear(CurveOf(folder, out), alone,
               absl::StrCat(nproc, " ranks, the tower on ", vision_ranks));
    ExpectSameModel(folder, out);
  }
}

// Without its last states the folder is that of a run that was killed after the step before.
TEST(MimoVl, ARunGoesOnOnAnotherNumberOfRanks) {
  const Folder folder;
  MakeVl(folder);
  const Ended one = RunOne(TuneVl("alone", folder, 1, 0, "=data_parallel"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<double> alone = CurveOf(folder, "alone");
  const Ended begun = RunOne(TuneVl("out", folder, 4, 2, "=fully_shard"));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;

  const struct {
    int nproc, vision_ranks;
    const char* parallel;
  } grids[] = {{3, 1, ".pp=2"}, {1, 0, "=data_parallel"}, {2, 1, "=fully_shard"}};
  for (const auto& [nproc, vision_ranks, parallel] : grids) {
    const std::string last = absl::StrCat(folder.path(), "/out/state/step-0000000", kSteps);
    ASSERT_GT(std::filesystem::remove_all(last), 0U);

    const Ended ended = RunOne(TuneVl("out", folder, nproc, vision_ranks, parallel));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr(absl::StrCat("after ", kSteps - 1, " steps")));
    ExpectNear(CurveOf(folder, "out"), alone, absl::StrCat("went on on ", nproc, " ranks"));
    ExpectSameModel(folder, "out");
  }
}

TEST(MimoVl, AnAdapterOfBothPartsIsOneFolder) {
  const Folder folder;
  MakeVl(folder);
  const Ended one = RunOne(TuneVl("alone", folder, 1, 0, "=data_parallel", "4"));
  ASSERT_EQ(one.exit_code, 0) << one.err;

  const Ended ended = RunOne(TuneVl("out", folder, 3, 1, "=fully_shard", "4"));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  ExpectNear(CurveOf(folder, "out"), CurveOf(folder, "alone"), "adapters");
  EXPECT_EQ(folder.Read("out/adapter/adapter_config.json"),
            folder.Read("alone/adapter/adapter_config.json"));
  folder.Write("compare.lua", R"(local data = require "lockstep.data"
local function read(path) return (data.safetensors(path .. "/adapter/adapter_model.safetensors")) end
local first, count = read "alone", 0
for name, value in pairs(read "out") do
  assert((value - first[name]):abs():max():item() <= 1e-9, name)
  count = count + 1
end
for _ in pairs(first) do count = count - 1 end
assert(count == 0)
)");
  const Ended compared = RunOne(Lockstep(folder, {"--nproc", "1", "compare.lua"}));
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
}

// `code` on two ranks, with `rank` and `topology`: vision on rank 0, language on rank 1.
Ended RunTopology(const std::string& code, const std::string& timeout) {
  const Folder folder;
  folder.Write("train.lua", absl::StrCat(R"(local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local torch = require "lockstep.torch"
local rank = dist.rank()
local modules = { { name = "vision" }, { name = "language", first_rank = 1 } }
local topology = mimo.topology { modules = modules }
)",
                                         code));
  return RunOne(Lockstep(folder, {"--nproc", "2", "--timeout", timeout, "train.lua"}));
}

// The same, with a `bridge` and its x().
Ended RunBridge(const std::string& code, const std::string& timeout) {
  return RunTopology(
      absl::StrCat(
          R"(local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
local function x() return rank == 0 and torch.ones { 2, 2 }:requires_grad_(true) or nil end
)",
          code),
      timeout);
}

TEST(Bridge, AScriptThatFailsIsTheCauseAndNotTheGraphThatEndsWithIt) {
  const Ended ended = RunBridge(R"(local y = bridge(x())
if rank == 1 then error "my own mistake" end
torch.sum(y):backward()
)",
                                "30");

  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 1: train.lua:10: my own mistake"),
                               Not(HasSubstr("did the loss use y"))));
}

// Not in a collective: the watchdog would tell of that one.
constexpr char kBusy[] = "local start = os.time() repeat until os.time() > start + 30";

TEST(Bridge, ARankThatMakesItAloneLearnsTheMissingRanks) {
  const std::string names[] = {"rank 0 (vision)", "rank 1 (language)"};
  for (const int maker : {0, 1}) {
    for (const bool other_has_ended : {false, true}) {
      const Ended ended = RunTopology(
          absl::StrCat("if rank == ", maker, " then mimo.bridge { topology = topology, from = ",
                       "'vision', to = 'language' } end\n", other_has_ended ? "" : kBusy),
          "2");

      const std::string expected =
          other_has_ended
              ? absl::StrCat(", which ", names[1 - maker],
                             " will not make, because its script has ended")
              : absl::StrCat(" and has waited 2 s for ", names[1 - maker], " to make it, too");
      EXPECT_NE(ended.exit_code, 0);
      EXPECT_THAT(ended.err,
                  HasSubstr(absl::StrCat("mimo.bridge: ", names[maker],
                                         " makes the bridge vision -> language", expected)));
      EXPECT_THAT(ended.err, Not(HasSubstr("gloo")));
    }
  }
}

TEST(Bridge, ARankThatDoesNotComeIsNamed) {
  const Ended ended = RunBridge(absl::StrCat("if rank == 0 then ", kBusy, " end bridge()"), "2");

  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err, HasSubstr("mimo: bridge vision -> language, call 0: rank 1 (language) "
                                   "waited for the message of rank 0 (vision)"));
}

TEST(Bridge, ARankThatLeavesBeforeItsRowsAreDueIsNamed) {
  for (const char* leave : {"return", "os.exit(0)"}) {
    const Ended ended =
        RunBridge(absl::StrCat("torch.sum(bridge(x())):backward()\n", "if rank == 0 then ", leave,
                               " end\nfor _ = 1, 3 do bridge(x()) end\n"),
                  "30");

    EXPECT_NE(ended.exit_code, 0);
    EXPECT_THAT(
        ended.err,
        AllOf(HasSubstr(
                  "rank 1: train.lua:11: mimo: bridge vision -> language, call 1: rank 1 "
                  "(language) waited for rank 0 (vision), which has left: its program has ended"),
              Not(HasSubstr("onnection"))));
  }
}

// A failure that the script catches: the other rank learns of it from the bridge.
TEST(Bridge, AFailureThatAScriptCatchesReachesTheOtherRank) {
  const Ended ended = RunBridge(R"(
local function train() torch.sum(bridge(x(), { rows_per_sample = rank == 0 and "two" or { 2 } })):backward() end
local ok, message = pcall(train)
if rank == 1 then print(message) end
assert(not ok)
)",
                                "30");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("rank 0 (vision) failed: mimo: bridge: rows_per_sample"));
}

TEST(Bridge, SentRowsArriveAfterTheSendersScriptHasEnded) {
  const Ended ended = RunBridge(R"(
for _ = 1, 2 do
  local xs, ys = {}, {}
  for i = 1, 6 do
    xs[i] = x()
    ys[i] = bridge(xs[i])
    if rank == 1 then torch.sum(ys[i] * i):backward() end
  end
  for i = 1, rank == 0 and 6 or 0 do
    torch.mm(torch.ones { 400, 400 }, torch.ones { 400, 400 })
    torch.sum(ys[i]):backward()
    assert(xs[i].grad[0][0]:item() == i)
  end
end
torch.no_grad(function() bridge(x()) end)
)",
                                "30");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
}

}  // namespace
}  // namespace lockstep::tests
