// Kinds of disagreement between ranks, and what names the culprit: the guard, the order of the
// script's collectives, --debug-collectives or the watchdog. Each without it is a hang, or training
// on with wrong values.

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

Ended RunScript(const std::string& code, const std::vector<std::string>& options) {
  std::vector<std::string> all = {"--nproc", "2", "--timeout", "2"};
  all.insert(all.end(), options.begin(), options.end());
  return RunOne(RankScript(Folder(), code, all));
}

// The script ends with exit code 1, a message that starts at a rank and a line, and the table.
void ExpectNamed(const Ended& ended, const std::vector<std::string>& lines) {
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(Count(ended.err, "lockstep: "), 1) << ended.err;
  EXPECT_THAT(ended.err,
              ContainsRegex("^lockstep: rank [01]: train.lua:[0-9]+: (backward: )?guard: "));
  for (const std::string& line : lines) EXPECT_THAT(ended.err, HasSubstr(line));
}

// --- The guard: what ranks say that they do ------------------------------------------------------

TEST(Guard, ARankThatDoesNotMakeItIsNamed) {
  const Ended ended = RunScript(
      "if rank == 1 then forever() end require('lockstep.sharding').guard { timeout_s = 1 }", {});

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank 0: train.lua:8: meeting of world "
                                       "\\(sharding.guard\\): waited 1s for ranks that have not "
                                       "come: 1\n"));
}

constexpr char kGuard[] =
    "local guard = require('lockstep.sharding').guard { timeout_s = 1 }\n"
    "guard:check('step 0', 'all is well')\n";

struct Case {
  const char* name;
  std::string code;  // from line 10 under the guard, line 8 else
  std::vector<std::string> lines;
};

class GuardDisagreement : public testing::TestWithParam<Case> {};

TEST_P(GuardDisagreement, IsNamedWithRankValueAndLine) {
  ExpectNamed(RunScript(absl::StrCat(kGuard, GetParam().code), {}), GetParam().lines);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, GuardDisagreement,
    testing::Values(
        Case{"KindOfBatch",
             "guard:check('step 1', { kind = rank == 0 and 'image' or 'text' })",
             {"the ranks disagree at \"step 1\":", "\n  rank 0: {kind = \"image\"} (train.lua:10)",
              "\n  rank 1: {kind = \"text\"} (train.lua:10)"}},
        Case{"Shape",
             "guard:check('step 1', torch.ones(4 + rank))",
             {"rank 0: torch.float32 {4} (train.lua:10)",
              "rank 1: torch.float32 {5} (train.lua:10)"}},
        Case{"Dtype",
             "guard:check('step 1', torch.ones(4):to(rank == 0 and torch.float32 or "
             "torch.bfloat16))",
             {"rank 0: torch.float32 {4}", "rank 1: torch.bfloat16 {4}"}},
        Case{"Samples",
             "guard:check('step 1', { samples = { 3, 9 + rank } })",
             {"rank 0: {samples = {3, 9}}", "rank 1: {samples = {3, 10}}"}},
        Case{"StepOfTheLoop",
             "if rank == 0 then guard:check('step 1', 'same')\n"
             "else guard:check('step 2', 'same') end",
             {"the ranks are at different checks", "rank 0: \"step 1\": same (train.lua:10)",
              "rank 1: \"step 2\": same (train.lua:11)"}},
        Case{"SkippedCheck",
             "if rank == 0 then guard:check('step 1', 'same') else forever() end",
             {"not all ranks came to \"step 1\", check number 2, within 1 s:",
              "\n  rank 1 last passed \"step 0\" (train.lua:9), its check number 1"}},
        Case{"ScriptThatEndedEarly",
             "if rank == 0 then guard:check('step 1', 'same') end",
             {"not all ranks came to \"step 1\"", "rank 1 last passed \"step 0\" (train.lua:9)"}}),
    [](const auto& info) { return info.param.name; });

// --- The order of the script's collectives -------------------------------------------------------

// Replicas of a small model, which takes lines 8 to 15.
constexpr char kModel[] =
    "local models, run = require 'lockstep.models', require 'lockstep.run'\n"
    "local sharding = require 'lockstep.sharding'\n"
    "local config = {\n"
    "  architectures = { 'LlamaForCausalLM' }, vocab_size = 8, hidden_size = 8, rms_norm_eps = "
    "1e-5,\n"
    "  intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,\n"
    "  num_key_value_heads = 1, max_position_embeddings = 8,\n"
    "}\n"
    "local dp = sharding.data_parallel(models.build(config))\n";

// Replicas of a layer, which take lines 8 to 10.
constexpr char kReplicas[] =
    "local nn = require 'lockstep.nn'\n"
    "local sharding = require 'lockstep.sharding'\n"
    "local dp = sharding.data_parallel(nn.Linear(2, 2))\n";

class OrderOfCollectives : public testing::TestWithParam<Case> {};

TEST_P(OrderOfCollectives, IsNamedWithRankValueAndLine) {
  const Ended ended = RunScript(GetParam().code, {});

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(Count(ended.err, "lockstep: "), 1) << ended.err;
  EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank [01]: train.lua:[0-9]+: "
                                       "(backward: )?the ranks call different collectives, each "
                                       "as its collective [0-9]+ of (world|ranks 1, 0):\n"));
  for (const std::string& line : GetParam().lines) EXPECT_THAT(ended.err, HasSubstr(line));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, OrderOfCollectives,
    testing::Values(
        // Printed 51, 2.5 and 3.5 where 2, 3 and 4 are the means, and then failed at the end.
        Case{"AMeanTooMany",
             "local sharding = require 'lockstep.sharding'\n"
             "if rank == 0 then sharding.weighted_mean(100, 2) end\n"
             "for step = 1, 3 do sharding.weighted_mean(step + rank, 1) end",
             {"\n  rank 0: all_reduce float64 {2} sum (train.lua:9)",
              "\n  rank 1: all_reduce float64 {2} sum (train.lua:10)"}},
        // Ended the process in Gloo.
        Case{"Shape",
             "dist.all_reduce(torch.ones(rank == 0 and 4 or 100000))",
             {"rank 0: all_reduce float32 {4} sum (train.lua:8)",
              "rank 1: all_reduce float32 {100000} sum (train.lua:8)"}},
        Case{"Operator",
             "local x = torch.ones(4)\n"
             "if rank == 0 then dist.all_reduce(x)\n"
             "else dist.broadcast(x, 0) end",
             {"\n  rank 0: all_reduce float32 {4} sum (train.lua:9)",
              "\n  rank 1: broadcast float32 {4} from rank 0 (train.lua:10)"}},
        Case{"DtypeOfEqualSize",
             "dist.all_gather(torch.ones(2):to(rank == 0 and torch.float32 or torch.int32))",
             {"rank 0: all_gather float32 {2}", "rank 1: all_gather int32 {2}"}},
        Case{"Reduction",
             "dist.all_reduce(torch.ones(2), rank == 0 and 'sum' or 'max')",
             {"rank 0: all_reduce float32 {2} sum", "rank 1: all_reduce float32 {2} max"}},
        Case{"Source",
             "dist.broadcast(torch.ones(2), rank)",
             {"from rank 0 (train.lua:8)", "from rank 1 (train.lua:8)"}},
        Case{
            "Group",
            "local group = dist.group { ranks = { 1, 0 } }\n"
            "if rank == 0 then dist.barrier { group = group }\n"
            "else dist.all_gather(torch.ones(2), { group = group }) end",
            {"\n  rank 1: all_gather float32 {2} (train.lua:10)\n  rank 0: barrier (train.lua:9)"}},
        Case{"CollectiveBehindTheEndOfAnotherRanksScript",
             "if rank == 0 then dist.all_reduce(torch.ones(1)) end",
             {"rank 0: all_reduce float32 {1} sum (train.lua:8)", "rank 1: the end of its script"}},
        Case{"CollectiveOfTheScriptAgainstOneOfBackward",
             "local nn, sharding = require 'lockstep.nn', require 'lockstep.sharding'\n"
             "local model = sharding.data_parallel(nn.Linear(2, 2))\n"
             "local loss = model(torch.ones(1, 2)):sum()\n"
             "if rank == 0 then sharding.weighted_mean(1, 1) end\n"
             "loss:backward()",
             {"rank 0: all_reduce float64 {2} sum (train.lua:11)",
              "rank 1: all_reduce float32 {6} sum (train.lua:12)"}},
        Case{"AGradientOnOneRankAlone",
             "local x = torch.ones(4):requires_grad_(rank == 0)\n"
             "dist.functional.all_reduce(x)",
             {"rank 0: all_reduce float32 {4} requires_grad sum (train.lua:9)",
              "rank 1: all_reduce float32 {4} sum (train.lua:9)"}},
        Case{
            "ABackwardOnOneRankAlone",
            "local y = dist.functional.all_reduce(torch.ones(4):requires_grad_(true))\n"
            "if rank == 0 then y:sum():backward() end\n"
            "dist.barrier()",
            {"rank 0: all_reduce float32 {4} sum (train.lua:9)", "rank 1: barrier (train.lua:10)"}},
        // As scripts for PyTorch save. Rank 1 is already in the next step.
        Case{"ASaveOnRank0Alone",
             absl::StrCat(
                 kModel,
                 "for step = 1, 2 do\n"
                 "dp { input_ids = torch.ones({ 2 }, { dtype = torch.int64 }) }:sum():backward()\n"
                 "if rank == 0 then models.save(dp, 'saved') end\n"
                 "end"),
             {"\n  rank 0: models.save (every rank must call it) (train.lua:18)",
              "\n  rank 1: pass 2 of sharding.data_parallel (train.lua:17)"}},
        // Averaged each gradient of rank 0 with the next one of rank 1, and ended with exit code 0.
        Case{"ABackwardThatOneRankSkips",
             absl::StrCat(kReplicas,
                          "for step = 1, 6 do\n"
                          "local loss = dp(torch.ones(1, 2)):sum()\n"
                          "if step ~= 3 or rank == 0 then loss:backward() end\n"
                          "end"),
             {"\n  rank 0: all_reduce float32 {6} sum (train.lua:13)",
              "\n  rank 1: pass 4 of sharding.data_parallel (train.lua:12)"}},
        // Ended with Gloo's words about a closed connection.
        Case{"AScriptThatEndsEarly",
             absl::StrCat(kReplicas,
                          "for step = 1, 6 - 2 * rank do\n"
                          "dp(torch.ones(1, 2)):sum():backward()\n"
                          "end"),
             {"\n  rank 0: pass 5 of sharding.data_parallel (train.lua:12)",
              "\n  rank 1: the end of its script"}},
        Case{"ASaveOnRank0AloneInALoopOverBatches",
             absl::StrCat(kModel,
                          "for i in sharding.lockstep(function() return 1 end) do\n"
                          "if rank == 0 then models.save(dp, 'saved') end\n"
                          "end"),
             {"\n  rank 0: models.save (every rank must call it) (train.lua:17)",
              "\n  rank 1: sharding.lockstep (train.lua:16)"}},
        Case{"AStateOnRank0Alone",
             absl::StrCat(kModel,
                          "local batches = { 1, 2, 3 }\n"
                          "run:state { model = dp }\n"
                          "for step in run:steps(function() return table.remove(batches) end) do\n"
                          "if rank == 0 then run:save() end\n"
                          "end"),
             {"\n  rank 0: run:save (every rank must call it) (train.lua:19)",
              "\n  rank 1: run:steps (train.lua:18)"}},
        Case{"AnAdapterOnRank0AloneBehindTheLoop",
             absl::StrCat(kModel,
                          "local lora = require 'lockstep.lora'\n"
                          "local net = models.build(config)\n"
                          "lora.apply(net)\n"
                          "if rank == 0 then lora.save(net, 'adapter') end"),
             {"\n  rank 0: lora.save (every rank must call it) (train.lua:19)",
              "\n  rank 1: the end of its script"}}),
    [](const auto& info) { return info.param.name; });

// As above, in a group of its own: its comparisons end with the script, too.
TEST(OrderOfCollectives, ReplicasInAGroupOfTheirOwnAreComparedInItsOrder) {
  const std::string code =
      "local nn, sharding = require 'lockstep.nn', require 'lockstep.sharding'\n"
      "local group = dist.group { ranks = { 1, 0 } }\n"
      "local dp = sharding.data_parallel(nn.Linear(2, 2), { group = group })\n";

  const Ended skipped =
      RunScript(absl::StrCat(code,
                             "for step = 1, 6 do\n"
                             "local loss = dp(torch.ones(1, 2)):sum()\n"
                             "if step ~= 3 or rank == 0 then loss:backward() end\n"
                             "end"),
                {});
  EXPECT_EQ(skipped.exit_code, 1);
  EXPECT_THAT(skipped.err, HasSubstr("rank 1: pass 4 of sharding.data_parallel (train.lua:12)"));
  EXPECT_THAT(skipped.err, HasSubstr("rank 0: all_reduce float32 {6} sum (train.lua:13)"));

  const Ended ended = RunScript(absl::StrCat(code,
                                             "for step = 1, 6 - 2 * rank do\n"
                                             "dp(torch.ones(1, 2)):sum():backward()\n"
                                             "end"),
                                {});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("rank 1: the end of its script"));
  EXPECT_THAT(ended.err, HasSubstr("rank 0: pass 5 of sharding.data_parallel (train.lua:12)"));
}

// A sharded model compares its collectives on connections of its own, which close with the script.
// Without the report before, 5 of 9 runs had no note.
TEST(EndOfAScript, IsNotedBeforeTheConnectionsOfAShardedModelClose) {
  for (int run = 0; run < 6; ++run) {
    const Ended ended = RunScript(
        "local nn, sharding = require 'lockstep.nn', require 'lockstep.sharding'\n"
        "local model = sharding.fully_shard(nn.Linear(2, 2))\n"
        "for step = 1, 4 - 2 * rank do\n"
        "model(torch.ones(1, 2)):sum():backward()\n"
        "end",
        {});

    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.err, ContainsRegex("^lockstep: rank 0: train.lua:11: fully_shard: rank 0 "
                                         "gathers the root for forward in pass 3, and not all "
                                         "ranks came: .*rank 1 .*\n"
                                         "note: by then the script had ended on rank 1\n"));
  }
}

TEST(OrderOfCollectives, BroadcastsAndBarriersMayStandOnALineForEachRank) {
  const Ended ended = RunScript(
      "local x = torch.tensor { rank }\n"
      "if rank == 1 then dist.broadcast(x, 1)\n"
      "else dist.broadcast(x, 1) end\n"
      "if rank == 1 then dist.barrier()\n"
      "else dist.barrier() end\n"
      "print('got', x:item())",
      {});

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "got\t1\n"), 2) << ended.out;
}

// --- --debug-collectives: what ranks do ----------------------------------------------------------

class CollectiveDisagreement : public testing::TestWithParam<Case> {};

// It also compares the collectives of a backward pass before they begin.
TEST_P(CollectiveDisagreement, IsNamedWithRankValueAndLine) {
  ExpectNamed(RunScript(GetParam().code, {"--debug-collectives"}), GetParam().lines);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CollectiveDisagreement,
    testing::Values(
        Case{"Operator",
             "local x = torch.ones(4)\n"
             "if rank == 0 then dist.all_reduce(x)\n"
             "else dist.broadcast(x, 0) end",
             {"the ranks disagree at \"collective 3 of world\":",
              "\n  rank 0: all_reduce float32 {4} sum (train.lua:9)",
              "\n  rank 1: broadcast float32 {4} from rank 0 (train.lua:10)"}},
        Case{"Order",
             "local a, b = torch.ones(2), torch.ones(3)\n"
             "if rank == 0 then a, b = b, a end\n"
             "dist.all_reduce(a)\n"
             "dist.all_reduce(b)",
             {"rank 0: all_reduce float32 {3} sum (train.lua:10)",
              "rank 1: all_reduce float32 {2} sum (train.lua:10)"}},
        Case{"Shape",
             "dist.all_gather(torch.ones(2 + rank, 3))",
             {"rank 0: all_gather float32 {2, 3} (train.lua:8)",
              "rank 1: all_gather float32 {3, 3} (train.lua:8)"}},
        Case{"DtypeOfEqualSize",
             "dist.broadcast(torch.ones(2):to(rank == 0 and torch.float32 or torch.int32), 0)",
             {"rank 0: broadcast float32 {2}", "rank 1: broadcast int32 {2}"}},
        Case{"Reduction",
             "dist.all_reduce(torch.ones(2), rank == 0 and 'sum' or 'max')",
             {"rank 0: all_reduce float32 {2} sum", "rank 1: all_reduce float32 {2} max"}},
        Case{"Source",
             "dist.broadcast(torch.ones(2), rank)",
             {"from rank 0 (train.lua:8)", "from rank 1 (train.lua:8)"}},
        Case{
            "SkippedCollective",
            "local x = torch.ones(4)\n"
            "if rank == 0 then dist.all_reduce(x) end\n"
            "dist.barrier()",
            {"rank 0: all_reduce float32 {4} sum (train.lua:9)", "rank 1: barrier (train.lua:10)"}},
        Case{"ExtraCollectiveAtTheEnd",
             "dist.barrier()\n"
             "if rank == 0 then dist.all_reduce(torch.ones(1)) else forever() end",
             {"not all ranks came to \"collective 4 of world\", check number 4, within 2 s:",
              "rank 1 last passed \"collective 3 of world\" (train.lua:8)"}},
        Case{"LayerThatOneRankSkips",
             "local nn, sharding = require 'lockstep.nn', require 'lockstep.sharding'\n"
             "local a, b = sharding.data_parallel(nn.Linear(2, 2)), nil\n"
             "b = sharding.data_parallel(nn.Linear(2, 3))\n"
             "local y = a(torch.ones(1, 2)):sum()\n"
             "if rank == 1 then y = b(torch.ones(1, 2)):sum() end\n"
             "y:backward()",
             {"rank 0: all_reduce float32 {6} sum (train.lua:13)",
              "rank 1: pass 1 of sharding.data_parallel (train.lua:12)"}}),
    [](const auto& info) { return info.param.name; });

TEST(DebugCollectives, LeaveAWellBehavedRunAsItIs) {
  const std::string code =
      "local x = dist.all_reduce(torch.tensor { rank + 1 }):item()\n"
      "local y = dist.all_gather_object { rank = rank, text = ('x'):rep(rank) }\n"
      "local group = dist.group { ranks = { 1, 0 } }\n"
      "local z = dist.broadcast(torch.tensor { rank }, 1, { group = group }):item()\n"
      "if rank == 0 then dist.send(torch.ones(2), 1) else dist.recv(torch.zeros(2), 0) end\n"
      "print(x, #y[2].text, z)";

  const Ended ended = RunScript(code, {"--debug-collectives"});

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.out, "3\t1\t1\n"), 2) << ended.out;
}

}  // namespace
}  // namespace lockstep::tests
