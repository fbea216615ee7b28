// --dry-run: one step of one rank among many that are not there, and what it says that it takes.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// 64 x 256 + 256 + 256 x 64 + 64 parameters; a batch of 32.
constexpr char kTrain[] = R"(
local dist, log = require "lockstep.distributed", require "lockstep.log"
local nn, optim = require "lockstep.nn", require "lockstep.optim"
local run, sharding = require "lockstep.run", require "lockstep.sharding"
local torch = require "lockstep.torch"
local Net = nn.Module:subclass("Net")
function Net:init() self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64) end
function Net:forward(x) return self.down(torch.relu(self.up(x))) end
local model = Net()
local replicas = sharding.data_parallel(model)
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
local function loader() return { x = torch.randn { 32, 64 }, kind = "text" } end
for step, batch in run:steps(loader, 100) do
  local loss = torch.mse_loss(replicas(batch.x), batch.x)
  loss:backward()
  optimizer:step()
  optimizer:zero_grad()
  log.step { loss = sharding.weighted_mean(loss:item(), 1) }
end
io.open("after_the_loop", "w"):close()
)";

Ended DryRun(const Folder& folder, const std::string& code, const std::string& nproc) {
  folder.Write("train.lua", code);
  return RunOne(Lockstep(folder, {"--dry-run", "--nproc", nproc, "train.lua"}));
}

TEST(DryRun, SaysWhatAStepTakesAndEndsThere) {
  const Folder folder;

  const Ended ended = DryRun(folder, kTrain, "8");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "step 0/100"), 1);
  EXPECT_THAT(ended.out, Not(HasSubstr("step 1/100")));
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("dry run of train.lua: the first step of rank 0 of 8, on cpu"),
                    HasSubstr("parameters  33,088 in 4 tensors, 0.13 MiB, of which 33,088 are"),
                    HasSubstr("gradients   0.13 MiB"), HasSubstr("optimizer   0.25 MiB"),
                    HasSubstr("batch       {kind = \"text\", x = float32 {32, 64}}")));
  // Forward 2 m n k for each layer; backward as much for each weight, and for the second's input.
  EXPECT_THAT(ended.out, AllOf(HasSubstr("aten::addmm  2.10 M"), HasSubstr("aten::mm     3.15 M"),
                               HasSubstr("total        5.24 M")));
  EXPECT_THAT(ended.out, AllOf(HasSubstr("at the peak"), HasSubstr("train.lua:7 "),
                               HasSubstr("train.lua:16  0.25")));
}

// 12 units of 2 x 128 x 512 parameters, and a root of 2 x 512 x 128.
constexpr char kSharded[] = R"(
local nn, optim = require "lockstep.nn", require "lockstep.optim"
local run, sharding = require "lockstep.run", require "lockstep.sharding"
local torch = require "lockstep.torch"
local Block = nn.Module:subclass("Block")
function Block:init()
  self.up, self.down = nn.Linear(128, 512, { bias = false }), nn.Linear(512, 128, { bias = false })
end
function Block:forward(x) return x + self.down(torch.relu(self.up(x))) end
local Net = nn.Module:subclass("Net")
function Net:init()
  self.layers = nn.ModuleList {}
  self.embedding, self.head = nn.Embedding(512, 128), nn.Linear(128, 512, { bias = false })
  for _ = 1, 12 do self.layers:append(Block()) end
end
function Net:forward(tokens)
  local x = self.embedding(tokens)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(x)
end
local model = sharding.fully_shard(Net(), { param_dtype = torch.bfloat16, reduce_dtype = torch.float32 })
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
for _, tokens in run:steps(function() return torch.arange(4) end, 100) do
  torch.cross_entropy_loss(model(tokens), tokens):backward()
  optimizer:step()
  optimizer:zero_grad()
end
)";

// Computes the peak as docs/fully_shard.md does. Its states are float32 masters, gradients and two
// moments of the rank's part. Weights are in bfloat16, of two units and of the root. Gradients are
// in float32, of one unit and of the root, and there twice.
TEST(DryRun, AShardedModelTakesWhatTheDocumentationSays) {
  constexpr double kUnit = 2 * 128 * 512, kRoot = 2 * 512 * 128, kAll = 12 * kUnit + kRoot;
  constexpr double kRanks = 4, kMiB = 1 << 20;

  const Ended ended = DryRun(Folder(), kSharded, "4");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("parameters  425,984 in 26 tensors, 1.62 MiB, of which 425,984 are"),
                    HasSubstr("gradients   1.62 MiB"), HasSubstr("optimizer   3.25 MiB")));
  const double expected =
      4 * 4 * kAll / kRanks + 2 * 2 * kUnit + 2 * 4 * kUnit + (2 + 2 * 4) * kRoot;
  double peak = 0;
  ASSERT_EQ(std::sscanf(ended.out.c_str() + ended.out.rfind("\ntotal"), " total %lf", &peak), 1)
      << ended.out;
  EXPECT_GT(peak, expected / kMiB);
  EXPECT_LT(peak, 1.03 * expected / kMiB);
}

TEST(DryRun, LeavesNoFilesAndRunsNothingBehindTheLoop) {
  const Folder folder;

  DryRun(folder, kTrain, "2");

  EXPECT_THAT(folder.List(), ElementsAre("train.lua"));
}

TEST(DryRun, ChangesNothingOfARunWhoseFolderIsGiven) {
  const Folder folder;
  folder.Write("train.lua", kTrain);
  folder.Write("run/metrics.jsonl", "of the run\n");

  const Ended ended =
      RunOne(Lockstep(folder, {"--dry-run", "--nproc", "2", "--run-dir", "run", "train.lua"}));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(folder.List("run"), ElementsAre("metrics.jsonl"));
  EXPECT_EQ(folder.Read("run/metrics.jsonl"), "of the run\n");
}

// Each would wait forever for ranks that do not exist.
TEST(DryRun, OtherRanksAreTakenToDoTheSame) {
  const Folder folder;

  const Ended ended = DryRun(folder, R"(
local dist, sharding = require "lockstep.distributed", require "lockstep.sharding"
local torch = require "lockstep.torch"
local function show(...) print(...) end
show("world", dist.world_size(), dist.rank(), dist.backend())
show("sum", dist.all_reduce(torch.ones { 2 }, "sum"):sum():item())
show("avg", dist.all_reduce(torch.ones { 2 }, "avg"):sum():item())
show("max", dist.all_reduce(torch.ones { 2 }, "max"):sum():item())
show("gathered", #dist.all_gather(torch.ones { 2 }), dist.all_gather(torch.ones { 2 })[3]:sum():item())
show("scattered", dist.reduce_scatter({ torch.ones(1), torch.ones(1), torch.ones(1) }):item())
show("objects", #dist.all_gather_object { a = 1 })
dist.broadcast(torch.ones { 2 }, 2)
dist.send(torch.ones { 2 }, 1)
dist.barrier()
show("group", dist.all_reduce(torch.ones(1), "sum", { group = dist.group { ranks = { 0, 2 } } }):item())
show("mean", sharding.weighted_mean(3, 1))
local steps = 0
local batches = { 1, 2, 3 }
for _ in sharding.lockstep(function() return table.remove(batches) end, { policy = "until_last" }) do steps = steps + 1 end
show("steps", steps)
sharding.guard {}:check("label", "fingerprint")
)",
                             "3");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* line :
       {"world\t3\t0\tgloo\n", "sum\t6\n", "avg\t2\n", "max\t2\n", "gathered\t3\t2\n",
        "scattered\t3\n", "objects\t3\n", "group\t2\n", "mean\t3\n", "steps\t3\n"}) {
    EXPECT_THAT(ended.out, HasSubstr(line));
  }
  EXPECT_THAT(ended.out, HasSubstr("dry run of train.lua: no step of rank 0 of 3, on cpu"));
}

TEST(DryRun, ValuesThatOnlyAnotherRankKnowsAreAnError) {
  const Folder folder;

  const Ended ended = DryRun(folder,
                             "local torch = require 'lockstep.torch'\n"
                             "require('lockstep.distributed').recv(torch.ones { 2 }, 1)\n",
                             "2");

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "a dry run has this rank alone");
  EXPECT_THAT(ended.err, HasSubstr("train.lua:2:"));
  EXPECT_THAT(folder.List(), ElementsAre("train.lua"));
}

// libtorch cannot trace while memory is tracked by line, as in a dry run.
TEST(DryRun, WritesNoTraceAndReportsIt) {
  const Folder folder;

  const Ended steps =
      DryRun(folder, "lockstep.profile { steps = { 0, 1 } }\n" + std::string(kTrain), "2");
  const Ended function = DryRun(folder,
                                "print(select(2, lockstep.profile({ path = 'one.json' }, "
                                "function(x) return x + 1 end, 2)))\n" +
                                    std::string(kTrain),
                                "2");

  EXPECT_EQ(steps.exit_code, 0) << steps.err;
  EXPECT_EQ(Count(steps.out,
                  "lockstep.profile: a dry run traces nothing; trace-rank0.json is not "
                  "written\n"),
            1)
      << steps.out;
  EXPECT_THAT(steps.out, HasSubstr("total        5.24 M"));
  EXPECT_EQ(function.exit_code, 0) << function.err;
  EXPECT_THAT(function.out, HasSubstr("one-rank0.json is not written\n3\n"));
  EXPECT_THAT(folder.List(), ElementsAre("train.lua"));
}

// Loops as Torch7's users wrote them. `BODY` is a step; 2 x 8 x 8 x 4 FLOPs forward, as many for
// the weight's gradient.
std::string HandWritten(const std::string& body) {
  return R"(
local log, optim, torch = require "lockstep.log", require "lockstep.optim", require "lockstep.torch"
local w = torch.ones({ 8, 8 }, { requires_grad = true })
local v = torch.ones({ 8, 8 }, { requires_grad = true })
local function loss_of(p)
  local loss = torch.ones { 4, 8 }:mm(p):sum()
  loss:backward()
  return loss
end
local function count(text) print("iteration " .. text) end
)" + body;
}

TEST(DryRun, ALoopOfTheScriptsOwnEndsAtTheSecondOptimizerStep) {
  const Folder folder;

  const Ended ended = DryRun(folder, HandWritten(R"(
local adam = optim.AdamW({ w }, { lr = 1e-3 })
for i = 1, 1000 do
  count(i)
  loss_of(w)
  adam:step(0.5)
  adam:zero_grad()
  log.step { loss = 1 }
end
)"),
                             "2");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "iteration "), 2) << ended.out;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("dry run of train.lua: a step of rank 0 of 2, on cpu"),
                               HasSubstr("optimizer   0.00 MiB"), HasSubstr("total     1.02 k")));
}

TEST(DryRun, TwoOptimizersMayTakeTurnsInAStep) {
  const Folder folder;

  const Ended ended = DryRun(folder, HandWritten(R"(
local one, other = optim.AdamW { w }, optim.AdamW { v }
for i = 1, 1000 do
  count(i)
  loss_of(w)
  one:step()
  loss_of(v)
  other:step()
end
)"),
                             "2");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "iteration "), 2) << ended.out;
  EXPECT_THAT(ended.out, HasSubstr("total     2.05 k"));
}

TEST(DryRun, WithoutAnOptimizerALoopEndsAtTheSecondLogStep) {
  const Folder folder;

  const Ended ended = DryRun(folder, HandWritten(R"(
for i = 1, 1000 do
  count(i)
  loss_of(w)
  torch.no_grad(function() w:sub_(w.grad) end)
  log.step { loss = i }
end
)"),
                             "2");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "iteration "), 2) << ended.out;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("a step of rank 0 of 2"), HasSubstr("total     1.02 k")));
}

TEST(DryRun, OneStepAndNoMoreIsCountedFromTheStart) {
  const Folder folder;

  const Ended ended =
      DryRun(folder, HandWritten("local adam = optim.AdamW { w }\nloss_of(w)\nadam:step()\n"), "2");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("the one step of rank 0 of 2"), HasSubstr("1.02 k")));
}

TEST(DryRun, SeveralOptimizerStepsInAStepOfRunStepsAreOneStep) {
  const Folder folder;

  const Ended ended = DryRun(folder, HandWritten(R"(
local adam = optim.AdamW { w }
loss_of(w)
adam:step()
for step in require("lockstep.run"):steps(function() return 1 end, 1000) do
  count(step)
  for _ = 1, 3 do
    loss_of(w)
    adam:step()
  end
  print("behind")
end
)"),
                             "2");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "iteration "), 1) << ended.out;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("behind\n"), HasSubstr("the first step of rank 0 of 2"),
                               HasSubstr("total     3.07 k")));
}

// The count of the mirrored ranks is this rank's, and not what the plan gives them.
TEST(DryRun, TheDivisorIsNotComparedWithMirroredCounts) {
  const Folder folder;

  const Ended ended = DryRun(folder, R"(
local nn, optim, run = require "lockstep.nn", require "lockstep.optim", require "lockstep.run"
local sharding, torch = require "lockstep.sharding", require "lockstep.torch"
local model = sharding.data_parallel(nn.Linear(2, 1))
local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
for _ in run:steps(function() return true end, 2) do
  sharding.accumulate(model, { torch.ones { 3, 2 } }, 10, function(x) return model(x):sum(), 3 end)
  optimizer:step()
end
)",
                             "4");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("the first step of rank 0 of 4"));
}

TEST(DryRun, PlansTheBatchesOfAllRanks) {
  const Folder folder;

  const Ended ended = DryRun(folder, R"(
local batching, dist = require "lockstep.batching", require "lockstep.distributed"
local run = require "lockstep.run"
local samples = {}
for i = 1, 20 do
  local ids, mask = {}, {}
  for j = 1, i do ids[j], mask[j] = j, 1 end
  samples[i] = { input_ids = ids, loss_mask = mask }
end
local batches, report = batching.prepare { samples = samples, seq_len = 32, ranks = dist.world_size() }
print("planned", #batches, report.micro_steps)
for _ in run:steps(function() return batches[1][1] end) do end
)",
                             "4");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("planned\t4\t2\n"),
                               HasSubstr("of batching.prepare's last call of 1: 2 micro-steps, "
                                         "210 tokens"),
                               HasSubstr("\nsample      text, the first of its micro-batch: "),
                               HasSubstr("text    not known: the script has opened no")));
}

// As in grpo.lua: the loop has samples, and its body packs them. Two rows of dp have 10 of 20
// tokens each.
TEST(DryRun, TheFormulaTakesTheMicroBatchesThatTheBodyPacks) {
  const Folder folder;

  const Ended ended = DryRun(folder, R"(
local batching, models = require "lockstep.batching", require "lockstep.models"
local run, sharding = require "lockstep.run", require "lockstep.sharding"
local net = models.build { model_type = "llama", vocab_size = 16, hidden_size = 16, intermediate_size = 16,
  num_attention_heads = 4, num_key_value_heads = 2, num_hidden_layers = 2 }
sharding.parallelize(net, sharding.grid { tp = 2 }, {})
local samples = {}
for i = 1, 4 do samples[i] = { input_ids = { 1, 2, 3, 4, 5 }, loss_mask = { 1, 1, 1, 1, 1 } } end
for _, drawn in run:steps(function() return samples end) do
  batching.prepare { samples = drawn, seq_len = 32, ranks = 2 }
end
)",
                             "4");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("tp 2 x dp 2, in MiB, by the formula of docs/propose.md: AdamW, "
                                   "1 micro-batch of 10 tokens"));
}

// The tokenizer is opened in a worker, whose Lua state the dry run does not see.
TEST(DryRun, ShowsTheFirstSampleOfEachKindAsTheModelGetsIt) {
  const Folder folder;
  folder.Write("my_map.lua", R"(
local text, torch = require "lockstep.text", require "lockstep.torch"
local tokenizer
return function(sample, options)
  tokenizer = tokenizer or text.tokenizer(options.tokenizer)
  local ids, mask = tokenizer:encode(sample.question .. "\n"), {}
  for i = 1, #ids do mask[i] = 0 end
  for _, id in ipairs(tokenizer:encode(sample.answer)) do ids[#ids + 1], mask[#mask + 1] = id, 1 end
  local prepared = { input_ids = ids, loss_mask = mask }
  if sample.is_bright then prepared.pixel_values = torch.arange(2, { dtype = torch.float32 }):view { 1, 1, 1, 2 } end
  return prepared
end
)");

  const Ended ended = DryRun(folder,
                             absl::StrCat(R"(
local batching, data = require "lockstep.batching", require "lockstep.data"
local run = require "lockstep.run"
local loader = data.loader {
  source = { { question = "Où?", answer = "Là." }, { question = "Seen?", answer = "Yes", is_bright = true } },
  map = "my_map", workers = 1, rank = 0, world = 1, shuffle = false, epochs = 1,
  options = { tokenizer = ")",
                                          DataFile("driver/text/testdata/gpt2.json"), R"(" },
}
local stream = batching.stream { source = loader, buffer = 2, seq_len = 64 }
for _ in run:steps(stream, 3) do end
)"),
                             "1");

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("sample      text, the first of its micro-batch: "),
                               HasSubstr("  text    Où?\n          [[Là.]]\n"),
                               HasSubstr("sample      image, the first of its micro-batch: "),
                               HasSubstr("  text    Seen?\n          [[Yes]]\n"),
                               HasSubstr("picture 1 of 1 in the batch, 2 x 1 pixels (width x "
                                         "height)\n            @@\n")));
}

TEST(DryRun, ALoopWithoutAStepIsSaidAndNotPlanned) {
  const struct {
    const char* loop;
    const char* message;
  } kCases[] = {
      {"run:steps(function() end)",
       "run:steps: the dry run has no step to report: the loader had no batch on rank 0 of 2"},
      {"run:steps(function() return 1 end, 0)",
       "run:steps: the dry run has no step to report: total is 0"},
  };
  for (const auto& [loop, message] : kCases) {
    const Folder folder;

    const Ended ended = DryRun(folder,
                               absl::StrCat("local run = require 'lockstep.run'\n"
                                            "for _ in ",
                                            loop, " do end\n"),
                               "2");

    EXPECT_EQ(ended.exit_code, 1) << loop;
    ExpectOneComplaint(ended, absl::StrCat("train.lua:2: ", message));
    EXPECT_EQ(ended.out, "") << loop;
  }
}

TEST(DryRun, NeedsAScriptAndNoLauncher) {
  const Folder folder;
  folder.Write("train.lua", "");

  Command command = Lockstep(folder, {"--dry-run", "train.lua"});
  command.environment["RANK"] = "0";
  command.environment["WORLD_SIZE"] = "2";
  command.environment["MASTER_ADDR"] = "127.0.0.1";
  command.environment["MASTER_PORT"] = "1";
  const Ended in_cluster = RunOne(command);
  const Ended without = RunOne(Lockstep(folder, {"--dry-run"}));

  EXPECT_EQ(in_cluster.exit_code, 2);
  ExpectOneComplaint(in_cluster, "--dry-run plays all ranks in one process");
  EXPECT_EQ(without.exit_code, 2);
  ExpectOneComplaint(without, "--dry-run needs a script");
}

}  // namespace
}  // namespace lockstep::tests
