// scripts/finetune.lua from a folder of Hugging Face to a folder: a small model of random weights
// learns conversations by heart, in full and by LoRA, with replicas and fully sharded.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// Writes model/ and chats.jsonl, whose first question has the answer "It is one.".
void WriteModelAndChats(const Folder& folder) {
  const Ended ended = RunOne(Lockstep(
      folder, {"--nproc", "1", "--run-dir", "made", DataFile("tests/scripts/tiny_chat_model.lua"),
               DataFile("driver/text/testdata/qwen2.json"),
               DataFile("driver/lua/lockstep/text/chat/chatml_fixture.jinja"), folder.path()}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
}

Ended FineTune(const Folder& folder, const std::string& out, const std::vector<std::string>& set) {
  std::vector<std::string> arguments = {"--nproc", "2", "--run-dir", out,
                                        DataFile("scripts/finetune.lua")};
  for (const std::string& setting : set) {
    arguments.push_back("--set");
    arguments.push_back(setting);
  }
  return RunOne(Lockstep(folder, arguments));
}

std::vector<std::string> Losses(const Folder& folder, const std::string& out) {
  std::vector<std::string> losses;
  for (const auto& object : ReadMetrics(folder, out + "/metrics.jsonl")) {
    const auto it = object.find("loss");
    if (it != object.end()) losses.push_back(it->second);
  }
  return losses;
}

TEST(FineTune, AModelLearnsItsConversationsAndIsWritten) {
  const Folder folder;
  WriteModelAndChats(folder);

  const Ended ended = FineTune(folder, "out",
                               {"model=model", "data=chats.jsonl", "steps=40", "lr=0.01",
                                "samples_per_step=8", "lora.r=0", "parallel=fully_shard"});

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(Not(HasSubstr("before: It is one.")), HasSubstr("after: It is one.\n"),
                    HasSubstr(absl::StrCat("wrote ", folder.path(), "/out/model\n"))));
  EXPECT_THAT(folder.List("out/model"),
              UnorderedElementsAre("chat_template.jinja", "config.json", "model.safetensors",
                                   "tokenizer.json"));
}

TEST(FineTune, AnAdapterLearnsTheSameWithReplicasAndSharded) {
  const Folder folder;
  WriteModelAndChats(folder);

  std::vector<double> last;
  for (const char* parallel : {"data_parallel", "fully_shard"}) {
    const Ended ended =
        FineTune(folder, parallel,
                 {"model=model", "data=chats.jsonl", "steps=10", "lr=0.01", "samples_per_step=8",
                  "lora.r=8", absl::StrCat("parallel=", parallel)});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("14 layers have an adapter"));
    EXPECT_THAT(folder.List(absl::StrCat(parallel, "/adapter")),
                UnorderedElementsAre("adapter_config.json", "adapter_model.safetensors"));
    const std::vector<std::string> losses = Losses(folder, parallel);
    ASSERT_EQ(losses.size(), 10u);
    EXPECT_LT(std::stod(losses.back()), 0.8 * std::stod(losses.front()));
    last.push_back(std::stod(losses.back()));
  }
  EXPECT_NEAR(last[0], last[1], 1e-3 * last[0]);
}

TEST(FineTune, WithoutAModelItSaysWhatToGive) {
  const Ended ended = FineTune(Folder(), "out", {});

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("give --set model=FOLDER and --set data=FILE.jsonl"));
}

}  // namespace
}  // namespace lockstep::tests
