// What grpo.lua, dpo.lua, kto.lua and reward.lua learn on grids of ranks, and from pictures.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/learning/learning.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;
using ::testing::SizeIs;

// Two of three rows have a picture, in each form. A step has micro-batches with pictures and of
// text.
TEST(Preferences, PromptsWithPicturesHaveTheSameLossesOnAnyNumberOfRanks) {
  const Folder made;
  const Ended model = RunOne(Lockstep(
      made, {"--nproc", "1", "--run-dir", "made", DataFile("tests/scripts/tiny_vision_model.lua"),
             DataFile("driver/text/testdata/qwen2.json"), DataFile("driver/images/testdata"),
             made.path()}));
  ASSERT_EQ(model.exit_code, 0) << model.err;
  // 11 of 12 pairs are learnt. kto.lua holds both answers of a pair out, and learns 22.
  struct Case {
    std::string script, per_step, parallel;
    size_t steps;
  };
  const std::vector<Case> cases = {{"dpo.lua", "pairs_per_step=5", "parallel=data_parallel", 3},
                                   {"reward.lua", "pairs_per_step=5", "parallel=fully_shard", 3},
                                   {"kto.lua", "answers_per_step=11", "parallel.tp=2", 2}};
  for (const auto& [script, per_step, parallel, steps] : cases) {
    SCOPED_TRACE(script);
    std::vector<double> losses;
    for (const int nproc : {1, 2}) {
      const Folder folder;
      std::vector<std::string> settings = {absl::StrCat("model=", made.path(), "/model"),
                                           absl::StrCat("data=", made.path(), "/pairs.jsonl"),
                                           "epochs=1",
                                           "held_out=1",
                                           "lr=0.01",
                                           "warmup_steps=0",
                                           "seq_len=150",
                                           per_step};
      if (nproc == 2) settings.push_back(parallel);

      const Ended ended = RunOne(Train(folder, script, nproc, settings));

      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      if (nproc == 1) losses = Values(folder, "loss");
      EXPECT_THAT(losses, SizeIs(steps));
      EXPECT_THAT(Values(folder, "loss"), Pointwise(DoubleNear(1e-4), losses));
    }
  }
}

// The answers of grpo.lua are those of one rank, too.
TEST(Grids, EachScriptLearnsWhatItLearnsOnOneRank) {
  const Folder start;
  std::string pairs;
  for (const char* word : {"abc", "lockstep", "de", "xyz", "hello", "rank", "tensor"}) {
    const std::string given = word, backwards(given.rbegin(), given.rend());
    pairs +=
        Pair(Message("user", given), Message("assistant", backwards), Message("assistant", given));
  }
  start.Write("pairs.jsonl", pairs);
  ASSERT_EQ(RunOne(Train(start, "grpo.lua", 1,
                         {"steps=1", "warm_steps=5", "problems_per_step=1", "group_size=2"}))
                .exit_code,
            0);
  const std::vector<std::string> common = {absl::StrCat("model=", start.path(), "/out/start"),
                                           "precision=float64", "lr=0.002", "steps=2",
                                           "parallel.sequence=true"};
  const std::vector<std::string> preferences = {absl::StrCat("data=", start.path(), "/pairs.jsonl"),
                                                "held_out=2", "seq_len=60", "lora.r=0"};
  struct Case {
    std::string script;
    std::vector<std::string> settings;
    std::vector<std::string> grids;
  };
  for (Case c : {Case{"dpo.lua", {"pairs_per_step=3"}, {"parallel.cp=2"}},
                 Case{"kto.lua", {"answers_per_step=5"}, {"parallel.cp=2"}},
                 Case{"reward.lua", {"pairs_per_step=3"}, {"parallel.cp=2"}},
                 Case{"grpo.lua",
                      {"problems_per_step=3", "group_size=3"},
                      {"parallel.tp=2", "parallel=fully_shard"}}}) {
    c.settings.insert(c.settings.end(), common.begin(), common.end());
    if (c.script != "grpo.lua") {
      c.settings.insert(c.settings.end(), preferences.begin(), preferences.end());
    }
    const Folder alone;
    const Ended one = RunOne(Train(alone, c.script, 1, c.settings));
    ASSERT_EQ(one.exit_code, 0) << one.err;
    ASSERT_THAT(Values(alone, "loss"), SizeIs(2));
    for (const std::string& grid : c.grids) {
      SCOPED_TRACE(absl::StrCat(c.script, " ", grid));
      const Folder folder;
      std::vector<std::string> settings = c.settings;
      settings.push_back(grid);
      const Ended ended = RunOne(Train(folder, c.script, 2, settings));
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      for (const char* field : {"loss", "grad_norm", "reward"}) {
        EXPECT_THAT(Values(folder, field), Pointwise(DoubleNear(1e-6), Values(alone, field)))
            << field;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::tests
