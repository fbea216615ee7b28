// scripts/pretrain.lua on a small language: what it learns in bits per byte, with replicas and
// fully sharded; the folder that it writes; and a run that is killed.

#include <signal.h>

#include <string>
#include <string_view>
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
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr int kSteps = 60;

// Writes 60 documents of sentences that name an animal, what it does, and a place.
void WriteDocuments(const Folder& folder) {
  const char* kAnimals[] = {"cat", "dog", "horse", "sparrow", "tortoise"};
  const char* kVerbs[] = {"sleeps", "runs", "eats", "waits"};
  const char* kPlaces[] = {"in the garden", "under the tree", "behind the house"};
  std::string lines;
  for (int document = 0; document < 60; ++document) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      const int draw = 7 * document * document + 31 * i * i + 5 * document * i;
      absl::StrAppend(&text, "The ", kAnimals[draw % 5], " ", kVerbs[draw / 5 % 4], " ",
                      kPlaces[draw / 20 % 3], ". ");
    }
    absl::StrAppend(&lines, "{\"text\": \"", text, "\"}\n");
  }
  folder.Write("texts.jsonl", lines);
}

Command Pretrain(const Folder& folder, const std::string& out,
                 const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings = {"data=texts.jsonl",
                                       "format=",
                                       "seq_len=64",
                                       "sequences_per_step=8",
                                       "micro_batch=2",
                                       absl::StrCat("steps=", kSteps),
                                       "warmup_steps=4",
                                       "lr=0.01",
                                       "eval_every=20",
                                       "sample_every=60",
                                       "save_every=10",
                                       "prompt=The cat",
                                       "model.vocab_size=320",
                                       "model.hidden_size=32",
                                       "model.head_dim=8",
                                       "model.num_hidden_layers=2",
                                       "model.intermediate_size=64"};
  settings.insert(settings.end(), more.begin(), more.end());
  return TrainCommand(folder, {"scripts/pretrain.lua", 2, settings, {}, out});
}

// Returns the bits per byte of the run's evaluations.
std::vector<double> BitsPerByte(const Folder& folder, const std::string& out) {
  return ReadValues(folder, out + "/metrics.jsonl", "bits_per_byte", "validation");
}

// Returns the setting of the script for "data_parallel" or "fully_shard".
std::string ShardSetting(std::string_view parallel) {
  return absl::StrCat("parallel.fully_shard=", parallel == "fully_shard" ? "true" : "false");
}

TEST(Pretrain, LearnsTheLanguageAndWritesAModel) {
  const Folder folder;
  WriteDocuments(folder);
  for (const char* parallel : {"data_parallel", "fully_shard"}) {
    for (const char* optimizer : {"muon", "adamw"}) {
      SCOPED_TRACE(absl::StrCat(parallel, " ", optimizer));
      const std::string out = absl::StrCat(parallel, "_", optimizer);

      const Ended ended = RunOne(
          Pretrain(folder, out, {ShardSetting(parallel), absl::StrCat("optimizer=", optimizer)}));

      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      EXPECT_THAT(ended.out, AllOf(HasSubstr("54 documents to learn from, 6 held out"),
                                   HasSubstr("\nThe cat"), HasSubstr("/model\n")));
      const std::vector<double> bits = BitsPerByte(folder, out);
      ASSERT_THAT(bits, SizeIs(3));
      // A sentence has log2(5 * 4 * 3) = 5.9 bits and some 33 bytes: 0.18 bits per byte.
      EXPECT_LT(bits.back(), 0.45);
      EXPECT_LT(bits.back(), bits.front());
      EXPECT_GT(bits.back(), 0.1);
      EXPECT_THAT(folder.List(out + "/model"),
                  UnorderedElementsAre("config.json", "model.safetensors", "tokenizer.json",
                                       "tokenizer_config.json"));
    }
  }
  const double replicas = BitsPerByte(folder, "data_parallel_muon").back();
  EXPECT_NEAR(BitsPerByte(folder, "fully_shard_muon").back(), replicas, 1e-2 * replicas);

  // One row of dp reads the documents in another order than two.
  const Ended split =
      RunOne(Pretrain(folder, "split", {"parallel.tp=2", "parallel.sequence=true"}));
  ASSERT_EQ(split.exit_code, 0) << split.err;
  EXPECT_NEAR(BitsPerByte(folder, "split").back(), replicas, 0.15 * replicas);
}

// A header of safetensors names a tensor and then its dtype.
TEST(Pretrain, LearnsInBf16WithFloat32Masters) {
  const Folder folder;
  WriteDocuments(folder);
  for (const char* parallel : {"data_parallel", "fully_shard"}) {
    SCOPED_TRACE(parallel);

    const Ended ended =
        RunOne(Pretrain(folder, parallel, {"precision=bf16", ShardSetting(parallel)}));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("\nprecision: bf16, with float32 masters\n"));
    const std::vector<double> bits = BitsPerByte(folder, parallel);
    ASSERT_THAT(bits, SizeIs(3));
    EXPECT_LT(bits.back(), 0.45);
    EXPECT_THAT(folder.Read(absl::StrCat(parallel, "/model/model.safetensors")),
                HasSubstr("\"model.embed_tokens.weight\":{\"dtype\":\"BF16\""));
    const std::string state = absl::StrCat(parallel, "/state/step-00000060/");
    std::string headers;
    for (const std::string& file : folder.List(state)) {
      if (file.find(".safetensors") != std::string::npos) headers += folder.Read(state + file);
    }
    EXPECT_THAT(headers, AllOf(HasSubstr("embed_tokens.weight.master\":{\"dtype\":\"F32\""),
                               HasSubstr("q_proj.weight.master\":{\"dtype\":\"F32\"")));
  }
}

TEST(Pretrain, AnUnknownPrecisionIsNamed) {
  const Folder folder;
  WriteDocuments(folder);

  const Ended ended = RunOne(Pretrain(folder, "out", {"precision=fp8"}));

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "precision must be \"auto\", \"bf16\", \"float32\", \"float64\", not");
}

TEST(Pretrain, ARunThatIsKilledGoesOnToTheSameBits) {
  const Folder folder;
  WriteDocuments(folder);
  ASSERT_EQ(RunOne(Pretrain(folder, "whole")).exit_code, 0);
  Child killed(Pretrain(folder, "killed"));
  killed.WaitForLine("step 25/");

  killed.Send(SIGKILL);
  EXPECT_EQ(killed.Wait().exit_code, 128 + SIGKILL);
  const Ended resumed = RunOne(Pretrain(folder, "killed"));

  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, Not(HasSubstr("step 0/")));
  EXPECT_EQ(folder.Read("killed/model/model.safetensors"),
            folder.Read("whole/model/model.safetensors"));
  EXPECT_EQ(BitsPerByte(folder, "killed"), BitsPerByte(folder, "whole"));
}

TEST(Pretrain, FinetuneTakesTheModel) {
  const Folder folder;
  WriteDocuments(folder);
  ASSERT_EQ(RunOne(Pretrain(folder, "out", {"steps=2"})).exit_code, 0);
  std::string chats;
  for (int i = 0; i < 8; ++i) {
    absl::StrAppend(&chats, R"({"messages": [{"role": "user", "content": "cat?"},)",
                    R"( {"role": "assistant", "content": "It sleeps."}]})", "\n");
  }
  folder.Write("chats.jsonl", chats);

  const Ended ended = RunOne(Lockstep(folder, {"--nproc",
                                               "2",
                                               "--run-dir",
                                               "tuned",
                                               DataFile("scripts/finetune.lua"),
                                               "--set",
                                               "model=out/model",
                                               "--set",
                                               "data=chats.jsonl",
                                               "--set",
                                               "steps=60",
                                               "--set",
                                               "lr=0.01",
                                               "--set",
                                               "samples_per_step=2",
                                               "--set",
                                               "held_out=2",
                                               "--set",
                                               "lora.r=0",
                                               "--set",
                                               "warmup_steps=2"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("after: user cat? -> It sleeps.\n"));
}

TEST(Pretrain, SequencesThatDoNotDivideByRanksAreNamed) {
  const Folder folder;
  WriteDocuments(folder);

  const Ended ended = RunOne(Pretrain(folder, "out", {"sequences_per_step=6"}));

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(
      ended, "sequences_per_step = 6 must be a multiple of micro_batch = 2 times the 2 rows of dp");
}

}  // namespace
}  // namespace lockstep::tests
