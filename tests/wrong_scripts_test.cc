// Forty wrong scripts of two ranks, and the first line that each prints.
//
// A script is wrong on one rank, or the ranks differ. Without a check it would hang, end in words
// of another library, or train on with wrong values. Each must end by itself. Its first line names
// a rank, the script's line and the cause, or announces the list of what each rank did.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// These are lines 8 to 10 of each script.
constexpr char kLibraries[] = R"(
local nn, optim, run = require "lockstep.nn", require "lockstep.optim", require "lockstep.run"
local sharding, data = require "lockstep.sharding", require "lockstep.data"
local x, net = torch.ones(4, 2), nn.Linear(2, 2)
)";

struct Case {
  const char* name;
  std::string code;               // from line 11
  std::string first;              // is a part of the first line
  std::vector<std::string> more;  // are in the lines behind it
};

class WrongScript : public testing::TestWithParam<Case> {};

TEST_P(WrongScript, EndsWithALineThatNamesRankCallAndCause) {
  const std::string code = std::string(kLibraries).substr(1) + GetParam().code;

  const Ended ended = RunOne(RankScript(Folder(), code, {"--nproc", "2", "--timeout", "5"}));

  const std::string first = ended.err.substr(0, ended.err.find('\n'));
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(first, ContainsRegex("^lockstep: rank [01][: ]")) << ended.err;
  EXPECT_THAT(first, HasSubstr(GetParam().first)) << ended.err;
  for (const std::string& text : GetParam().more) EXPECT_THAT(ended.err, HasSubstr(text));
  EXPECT_EQ(Count(ended.err, "lockstep: "), 1) << ended.err;  // one report, not one of each rank
}

std::string CallsDiffer(int line) {
  return absl::StrCat("train.lua:", line,
                      ": the ranks call different collectives, each as its collective ");
}

const auto& NameOfCase = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(
    Collectives, WrongScript,
    testing::Values(
        Case{"ShapeOfAReduction",
             "dist.all_reduce(torch.ones(4 + rank))",
             CallsDiffer(11),
             {"\n  rank 0: all_reduce float32 {4} sum (train.lua:11)",
              "\n  rank 1: all_reduce float32 {5} sum (train.lua:11)"}},
        Case{"AMeanTooMany",
             "if rank == 0 then sharding.weighted_mean(1, 1) end\n"
             "for step = 1, 3 do sharding.weighted_mean(step, 1) end",
             "the ranks call different collectives, each as its collective 3 of world:",
             {"\n  rank 0: all_reduce float64 {2} sum (train.lua:11)",
              "\n  rank 1: all_reduce float64 {2} sum (train.lua:12)"}},
        Case{"SourceOfABroadcast",
             "dist.broadcast(x, rank)",
             CallsDiffer(11),
             {"from rank 0 (train.lua:11)", "from rank 1 (train.lua:11)"}},
        Case{"OperatorOfAScatter",
             "dist.reduce_scatter({ x, x }, rank == 0 and 'sum' or 'max')",
             CallsDiffer(11),
             {"rank 0: reduce_scatter float32 {4, 2} sum",
              "rank 1: reduce_scatter float32 {4, 2} max"}},
        // Went on with means of other steps, to exit code 0.
        Case{"AnArgumentThatPcallCatches",
             "for step = 1, 4 do\n"
             "local ok, message = pcall(dist.all_reduce, step == 2 and rank == 1 and 'x' or x)\n"
             "if not ok and rank == 0 then error(message, 0) end\n"
             "end",
             "rank 0: " + CallsDiffer(12),
             {"\n  rank 0: all_reduce float32 {4, 2} sum (train.lua:12)",
              "\n  rank 1: refused: dist.all_reduce: x must be a tensor"}},
        Case{"AFunctionThatPcallCatches",
             "for step = 1, 3 do\n"
             "local ok, mean = pcall(sharding.weighted_mean, step == 2 and rank == 1 and 'x' or 1, "
             "1)\n"
             "if not ok and rank == 0 then error(mean, 0) end\n"
             "end",
             "rank 0: " + CallsDiffer(12),
             {"\n  rank 1: refused: sharding.weighted_mean: sum must be a number"}},
        // Waited for --timeout; the report showed both lists as "world".
        Case{"OrderOfAGroupsMembers",
             "dist.group { ranks = rank == 0 and { 0, 1 } or { 1, 0 } }",
             "train.lua:11: the ranks of a group list its members differently:",
             {"\n  rank 0: {0, 1} (train.lua:11)", "\n  rank 1: {1, 0} (train.lua:11)"}},
        Case{"AGroupThatOneMemberMakes",
             "if rank == 0 then dist.group { ranks = { 0, 1 } } end",
             "rank 0: train.lua:11: group {0, 1}: rank 1 does not come, because its script has "
             "ended",
             {}},
        Case{"TwoGroupsInOtherOrders",
             "local a, b = dist.group { ranks = { 0, 1 } }, dist.group { ranks = { 0, 1 } }\n"
             "if rank == 1 then a, b = b, a end\n"
             "dist.barrier { group = a }\n"
             "dist.barrier { group = b }",
             "rank 0 waits for rank 1 in barrier of world (group 1) (train.lua:13); rank 1 waits "
             "for "
             "rank 0 in barrier of world (group 2) (train.lua:13)",
             {"Ranks wait for each other in a circle: rank 0 waits for rank 1 in barrier of world "
              "(group 1) (train.lua:13), rank 1 waits for rank 0 in barrier of world (group 2)"}},
        // Gloo notices the end of the other rank, or the watchdog does. It named no call.
        Case{"AMessageThatNobodySends",
             "if rank == 0 then dist.recv(x, 1) end",
             "rank 0: train.lua:11: ",
             {"recv", "rank 1"}},
        Case{"TwoRanksThatBothReceive",
             "dist.recv(x, 1 - rank)",
             "rank 0 waits for rank 1 in recv float32 {4, 2} from rank 1, tag 0 of world "
             "(train.lua:11)",
             {"Ranks wait for each other in a circle: "}},
        Case{"ADtypeThatIsReceived",
             "if rank == 0 then dist.send(x, 1) else dist.recv(x:double(), 0) end",
             "rank 1: train.lua:11: dist.recv: rank 0 sends float32 {4, 2} on cpu (train.lua:11), "
             "but x is float64 {4, 2} on cpu",
             {}},
        Case{"AFunctionThatIsSent",
             "dist.all_gather_object(rank == 1 and { fn = print } or {})",
             "rank 1: train.lua:11: all_gather_object: value.fn is a function",
             {}},
        Case{"ABackwardOnOneRank",
             "local y = dist.functional.all_reduce(x:clone():requires_grad_(true))\n"
             "if rank == 0 then y:sum():backward() end\n"
             "dist.barrier()",
             "the ranks call different collectives, each as its collective 4 of world:",
             {"\n  rank 0: all_reduce float32 {4, 2} sum (train.lua:12)",
              "\n  rank 1: barrier (train.lua:13)"}},
        Case{"ACollectiveBehindTheEndOfTheOtherScript",
             "if rank == 0 then dist.barrier() end",
             "rank 0: " + CallsDiffer(11),
             {"\n  rank 0: barrier (train.lua:11)", "\n  rank 1: the end of its script"}}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    WhatOnlyTheScriptKnows, WrongScript,
    testing::Values(
        Case{"AConfiguration",
             "run.config { steps = 4, optimizer = { lr = rank == 0 and 0.1 or 0.2 } }",
             "train.lua:11: run.config: ranks do not agree: optimizer.lr is 0.1 on rank 0, and 0.2 "
             "on rank 1",
             {}},
        Case{"AConfigurationOfOneRank",
             "if rank == 0 then run.config { steps = 4 } end\n"
             "dist.barrier()",
             "the ranks call different collectives, each as its collective 3 of world:",
             {"\n  rank 0: run.config (every rank must call it) (train.lua:11)"}},
        Case{"SeedOfADataset",
             "sharding.dataset { size = 8, seed = rank }",
             "train.lua:11: sharding.dataset: ranks do not agree: seed is 0 on rank 0, and 1 on "
             "rank 1",
             {}},
        Case{"SeedOfALoader",
             "data.loader { source = { 1, 2, 3 }, seed = rank }",
             "train.lua:11: data.loader: ranks do not agree: seed is 0 on rank 0, and 1 on rank 1",
             {}},
        Case{"SourceOfALoader",
             "data.loader { source = rank == 0 and { 1, 2, 3 } or { 1, 2 } }",
             "train.lua:11: data.loader: ranks do not agree: source is 3 samples (1 of 3, ",
             {}},
        Case{"LearningRate",
             "local model = sharding.data_parallel(net)\n"
             "local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 + 0.1 * rank })\n"
             "run:state { model = model, optimizer = optimizer }\n"
             "for _, batch in run:steps(data.loader { source = { x } }) do\n"
             "model(batch):sum():backward()\n"
             "optimizer:step()\n"
             "end",
             "train.lua:14: run:steps: after 0 steps: ranks do not agree: optimizer.groups[1].lr "
             "is 0.1",
             {}},
        Case{"AnUpdateThatOneRankSkips",
             "local model = sharding.data_parallel(net)\n"
             "local optimizer = optim.AdamW(model:parameters())\n"
             "run:state { model = model, optimizer = optimizer }\n"
             "local batches = { x, x, x }\n"
             "for step, batch in run:steps(function() return table.remove(batches) end) do\n"
             "model(batch):sum():backward()\n"
             "if step == 0 or rank == 0 then optimizer:step() end\n"
             "end",
             "train.lua:15: run:steps: after 2 steps: ranks do not agree: optimizer: number of "
             "steps is 2 on rank 0, and 1 on rank 1",
             {}},
        Case{"ReplicasThatDriftBeforeASave",
             "run:state { model = sharding.data_parallel(net) }\n"
             "run:save { step = 1 }\n"
             "torch.no_grad(function() net.bias:add_(rank) end)\n"
             "run:save { step = 2 }",
             "train.lua:14: run:save: \"bias\" holds other values on rank 1 than on rank 0",
             {}},
        Case{"ACountOfMicroBatches",
             "local model = sharding.data_parallel(net)\n"
             "sharding.accumulate(model, rank == 0 and { x, x } or { x }, 4, function(v) return "
             "model(v):sum() end)",
             "train.lua:12: sharding.accumulate: every rank needs equally many micro-batches and "
             "the same count",
             {"2 micro-batches and a count of 4: rank 0; 1 micro-batches and a count of 4: rank "
              "1"}},
        Case{"ABatchOfAnotherKind",
             "local guard = sharding.guard { timeout_s = 5 }\n"
             "guard:check('step 1', { kind = rank == 0 and 'image' or 'text' })",
             "train.lua:12: guard: the ranks disagree at \"step 1\":",
             {"\n  rank 0: {kind = \"image\"} (train.lua:12)",
              "\n  rank 1: {kind = \"text\"} (train.lua:12)"}}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    LoopsAndStates, WrongScript,
    testing::Values(
        Case{"LoopsThatEndAtDifferentSteps",
             "run:state { best = {} }\n"
             "local batches = { 1, 2, rank == 0 and 3 or nil }\n"
             "for _ in run:steps(function() return table.remove(batches) end) do end",
             "train.lua:13: run:steps: the loop ends on rank 1 after 2 steps, but continues on "
             "rank 0",
             {}},
        Case{"ALoopThatOneRankLeaves",
             "for i in sharding.lockstep(function() return 1 end) do\n"
             "if rank == 1 then break end\n"
             "end",
             "rank 0: " + CallsDiffer(11),
             {"\n  rank 0: sharding.lockstep (train.lua:11)", "\n  rank 1: the end of its script"}},
        Case{"NamesOfAState",
             "run:state { [rank == 0 and 'a' or 'b'] = {} }",
             "train.lua:11: run:state: ranks do not agree: objects is a on rank 0, and b on rank 1",
             {}},
        Case{"IntervalOfAState",
             "run:state({ best = {} }, { every = 2 + rank })",
             "train.lua:11: run:state: ranks do not agree: every is 2 on rank 0, and 3 on rank 1",
             {}},
        Case{"ASaveOfOneRank",
             "run:state { best = {} }\n"
             "if rank == 0 then run:save { step = 1 } end\n"
             "dist.barrier()",
             "the ranks call different collectives, each as its collective ",
             {"\n  rank 0: run:save (every rank must call it) (train.lua:12)",
              "\n  rank 1: barrier (train.lua:13)"}},
        Case{"ASaveOfAnotherStep",
             "run:state { best = {} }\n"
             "run:save { step = 1 + rank }",
             "train.lua:12: run:save: rank 1 saves after 2 steps, and rank 0 after 1",
             {}},
        Case{"TheBestOfOneRank",
             "run:state { best = {} }\n"
             "run:keep_best('loss', 1 + rank, { step = 1 })",
             "train.lua:12: run:keep_best: ranks do not agree: the loss is 1 on rank 0, and 2 on "
             "rank 1",
             {}},
        Case{"ANumberThatIsNotFinite",
             "local batches = { 1, 2, 3 }\n"
             "for step in run:steps(function() return table.remove(batches) end) do\n"
             "run:finite { loss = step == 1 and rank == 1 and 0 / 0 or 1 }\n"
             "end",
             "train.lua:13: run:finite: step 1: loss is nan on rank 1",
             {}}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    Models, WrongScript,
    testing::Values(
        Case{"ModulesThatDiffer",
             "sharding.data_parallel(nn.Linear(2, 2 + rank))",
             "train.lua:11: data_parallel: the ranks hold different modules; 2 tensors differ",
             {"rank 0: weight: Float [2, 2], trained", "rank 1: weight: Float [3, 2], trained"}},
        Case{"AParameterThatOneRankFreezes",
             "net.bias.requires_grad = rank == 0\n"
             "sharding.data_parallel(net)",
             "train.lua:12: data_parallel: the ranks hold different modules; 1 tensors differ",
             {"rank 1: bias: Float [2], frozen"}},
        Case{"AUnitThatOneRankLeavesOut",
             "local Two = nn.Module:subclass('Two')\n"
             "function Two:init() self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2) end\n"
             "function Two:forward(v) return rank == 0 and self.b(self.a(v)) or self.a(v) end\n"
             "sharding.fully_shard(Two(), { units = { 'a', 'b' } })(x)",
             ": fully_shard: the ranks differ in pass 1:",
             {"\n  rank 0: gathers \"b\" for forward", "\n  rank 1: ends forward"}}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    OneRank, WrongScript,
    testing::Values(
        Case{"AnError",
             "if rank == 1 then print(net.wieght:sum()) end\n"
             "dist.barrier()",
             "rank 1: train.lua:11: attempt to index field 'wieght' (a nil value); did you mean "
             "\"net.weight\"?",
             {}},
        Case{"AStringAndATensor",
             "if rank == 1 then print('the weight is ' .. net.weight) end\n"
             "dist.barrier()",
             "rank 1: train.lua:11: attempt to concatenate field 'weight' (a userdata value); a "
             "tensor is joined to a string as its number, x:item(), or as text, tostring(x)",
             {}},
        Case{"AFileThatItLacks",
             "data.source(rank == 1 and 'nowhere.jsonl' or 'train.lua', { format = 'text' })\n"
             "dist.barrier()",
             "rank 1: train.lua:11: data.source: cannot open nowhere.jsonl: there is no such file",
             {}},
        Case{"AnExit",
             "if rank == 1 then os.exit(3) end\n"
             "dist.barrier()",
             "rank 1 called os.exit(3) at train.lua:11",
             {}},
        Case{"AKill",
             "if rank == 1 then C.kill(C.getpid(), 9) end\n"
             "dist.barrier()",
             "was killed by SIGKILL",
             {}}),
    NameOfCase);

}  // namespace
}  // namespace lockstep::tests
