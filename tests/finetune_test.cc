// scripts/finetune.lua from a folder of Hugging Face to a folder: small models of random weights
// learn instructions and pictures, in full and by LoRA, with replicas and fully sharded.

#include <signal.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;
using ::testing::UnorderedElementsAre;
using Strings = std::vector<std::string>;

// Makes model/ and a file of conversations by a script of tests/scripts.
void Make(const Folder& folder, const std::string& script, const std::string& second) {
  const Ended ended = RunOne(Lockstep(
      folder, {"--nproc", "1", "--run-dir", "made", DataFile("tests/scripts/" + script),
               DataFile("driver/text/testdata/qwen2.json"), DataFile(second), folder.path()}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
}

void MakeTextModel(const Folder& folder) {
  Make(folder, "tiny_chat_model.lua", "driver/lualib/lockstep/text/chat/chatml_fixture.jinja");
}

Command FineTune(const Folder& folder, const std::string& out, const Strings& settings,
                 int nproc = 2) {
  Command command = TrainCommand(folder, {"scripts/finetune.lua", nproc, settings, {}, out});
  command.timeout = absl::Minutes(4);
  return command;
}

// Returns the values of a field of the steps, or of the validations, in order.
enum class Of { kSteps, kValidation };
std::vector<double> Values(const Folder& folder, const std::string& out, Of of,
                           const std::string& name) {
  return ReadValues(folder, out + "/metrics.jsonl", name, of == Of::kSteps ? "" : "validation");
}

// Without `data` the script teaches its own instructions.
TEST(FineTune, InstructionsAreFollowedThatWereHeldOut) {
  const Folder folder;
  MakeTextModel(folder);

  const Ended ended =
      RunOne(FineTune(folder, "out",
                      {"model=model", "steps=250", "lr=0.005", "samples_per_step=32",
                       "max_new_tokens=12", "lora.r=0", "parallel=fully_shard"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<double> exact = Values(folder, "out", Of::kValidation, "exact");
  ASSERT_EQ(exact.size(), 4u);
  EXPECT_EQ(exact.front(), 0);
  EXPECT_GE(exact.back(), 0.85);
  const std::vector<double> loss = Values(folder, "out", Of::kValidation, "loss");
  EXPECT_LT(loss.back(), 0.05 * loss.front());
  EXPECT_THAT(ended.out, HasSubstr("after: user Write learning twice. -> learning learning\n"));
  EXPECT_THAT(ended.out, HasSubstr(absl::StrCat("wrote ", folder.path(), "/out/model\n")));
  EXPECT_THAT(folder.List("out/model"),
              UnorderedElementsAre("chat_template.jinja", "config.json", "model.safetensors",
                                   "tokenizer.json"));
}

TEST(FineTune, AnAdapterLearnsTheSameOnEachGridOfTwoRanks) {
  const Folder folder;
  MakeTextModel(folder);

  std::vector<double> last, validation;
  std::string config;
  for (const char* parallel : {"parallel=data_parallel", "parallel=fully_shard", "parallel.tp=2",
                               "parallel.cp=2", "parallel.pp=2"}) {
    const Ended ended = RunOne(FineTune(
        folder, parallel,
        {"model=model", "data=chats.jsonl", "steps=10", "lr=0.01", "samples_per_step=7", "lora.r=8",
         "held_out=1", parallel, "parallel.sequence=true", "parallel.order=all_forwards_first"}));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("14 layers have an adapter"));
    EXPECT_THAT(folder.List(absl::StrCat(parallel, "/adapter")),
                UnorderedElementsAre("adapter_config.json", "adapter_model.safetensors"));
    const std::vector<double> losses = Values(folder, parallel, Of::kSteps, "loss");
    ASSERT_EQ(losses.size(), 10u);
    EXPECT_LT(losses.back(), 0.8 * losses.front());
    EXPECT_NEAR(losses.back(), last.empty() ? losses.back() : last[0], 1e-3 * losses.back());
    last.push_back(losses.back());
    // On a grid the file of one rank's model has all its layers.
    const std::string adapter = folder.Read(absl::StrCat(parallel, "/adapter/adapter_config.json"));
    EXPECT_EQ(adapter, config.empty() ? adapter : config);
    config = adapter;
    const std::vector<double> held_out = Values(folder, parallel, Of::kValidation, "loss");
    ASSERT_EQ(held_out.size(), 2u);
    validation.push_back(held_out.back());
    EXPECT_NEAR(held_out.back(), validation[0], 1e-3 * validation[0]);
  }
}

// Ranks that divide the experts write an answer together.
TEST(FineTune, AModelWithItsExpertsOnTwoRanksWritesAnswers) {
  const Folder folder;
  MakeTextModel(folder);

  const Ended ended =
      RunOne(FineTune(folder, "out",
                      {"model=experts", "data=chats.jsonl", "steps=1", "samples_per_step=3",
                       "held_out=3", "max_new_tokens=2", "lora.r=0", "parallel.ep=2"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Values(folder, "out", Of::kValidation, "exact").size(), 2u);
  EXPECT_THAT(ended.out, HasSubstr("after: "));
}

// Layers in 8 bits are not divided, so that the setting is needed.
TEST(FineTune, AFolderOf8BitsIsReadWholeForATensorParallelAdapter) {
  const Folder folder;
  MakeTextModel(folder);

  const Ended ended =
      RunOne(FineTune(folder, "out",
                      {"model=int8", "data=chats.jsonl", "steps=1", "samples_per_step=2",
                       "held_out=0", "lora.r=2", "parallel.tp=2", "read_whole=true"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(folder.List("out/adapter"),
              UnorderedElementsAre("adapter_config.json", "adapter_model.safetensors"));
}

TEST(FineTune, OtherScriptsReadAFolderOf8BitsWhole) {
  const Folder folder;
  MakeTextModel(folder);
  folder.Write("pairs.jsonl",
               "{\"prompt\": \"How is 1 written?\", \"chosen\": \"It is one.\", "
               "\"rejected\": \"It is two.\", \"answer\": \"one\"}\n");
  for (const std::string name : {"dpo", "kto", "reward", "grpo"}) {
    SCOPED_TRACE(name);
    Strings settings = {"model=int8", "data=pairs.jsonl", "steps=1",
                        "lora.r=2",   "parallel.tp=2",    "read_whole=true"};
    const Strings more = name == "grpo"  ? Strings{"task=questions", "problems_per_step=1",
                                                  "group_size=2", "max_new_tokens=1"}
                         : name == "kto" ? Strings{"answers_per_step=2", "held_out=0"}
                                         : Strings{"pairs_per_step=1", "held_out=0"};
    settings.insert(settings.end(), more.begin(), more.end());

    const Ended ended = RunOne(
        TrainCommand(folder, {absl::StrCat("scripts/", name, ".lua"), 2, settings, {}, name}));

    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
}

// The first sample is printed, so the second one is the one to refuse.
TEST(FineTune, AQuestionWithAVideoOrAPictureThatIsNotReadNamesFileAndLine) {
  const Folder folder;
  MakeTextModel(folder);
  for (const std::string kind : {"video", "image"}) {
    SCOPED_TRACE(kind);
    folder.Write("questions.jsonl",
                 absl::StrCat(R"({"question": "One?", "answer": "one"})", "\n",
                              R"({"prompt": [{"role": "user", "content": [{"type": ")", kind,
                              R"(", ")", kind, R"(": "cat"}]}], "answer": "one"})", "\n"));

    const Ended ended = RunOne(
        TrainCommand(folder, {"scripts/grpo.lua",
                              1,
                              {"model=model", "data=questions.jsonl", "task=questions", "steps=1",
                               "problems_per_step=2", "group_size=2", "max_new_tokens=1"},
                              {},
                              kind}));

    EXPECT_NE(ended.exit_code, 0);
    EXPECT_THAT(ended.err, HasSubstr(absl::StrCat("questions.jsonl, line 2: the prompt has a ",
                                                  kind == "image" ? "picture" : kind)));
  }
}

TEST(FineTune, AnAdapterLearnsOnABaseOf4Bits) {
  const Folder folder;
  MakeTextModel(folder);

  const Ended ended =
      RunOne(FineTune(folder, "out",
                      {"model=model", "data=chats.jsonl", "steps=10", "lr=0.01",
                       "samples_per_step=8", "lora.r=8", "held_out=0", "load_in_4bit=true",
                       "optimizer=AdamW8bit", "parallel=fully_shard", "merge=true"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<double> losses = Values(folder, "out", Of::kSteps, "loss");
  ASSERT_EQ(losses.size(), 10u);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  EXPECT_THAT(folder.List("out/adapter"),
              UnorderedElementsAre("adapter_config.json", "adapter_model.safetensors"));
  EXPECT_THAT(folder.List("out/model"),
              UnorderedElementsAre("chat_template.jinja", "config.json", "model.safetensors",
                                   "tokenizer.json"));
  const Ended whole = RunOne(FineTune(
      folder, "whole", {"model=model", "data=chats.jsonl", "lora.r=0", "load_in_4bit=true"}));
  EXPECT_NE(whole.exit_code, 0);
  EXPECT_THAT(whole.err, HasSubstr("load_in_4bit=true trains an adapter: lora.r must not be 0"));
}

// All lines but the one that the split leaves for the training are broken.
TEST(FineTune, AHeldOutConversationThatCannotBeEncodedNamesFileAndLine) {
  const Folder folder;
  MakeTextModel(folder);
  std::string lines;
  for (int i = 1; i <= 8; ++i)
    lines += absl::StrCat(R"({"messages": [{"role": "user", "content": "a"}, {"role": )",
                          i == 7 ? R"("assistant")" : "5", R"(, "content": "b"}]})", "\n");
  folder.Write("broken.jsonl", lines);

  const Ended ended =
      RunOne(FineTune(folder, "out", {"model=model", "data=broken.jsonl", "held_out=7"}));

  EXPECT_NE(ended.exit_code, 0);
  EXPECT_THAT(ended.err,
              ContainsRegex("broken.jsonl, line [1-8]: .*message 2 of \"messages\" has no role"));
  EXPECT_THAT(ended.err, Not(HasSubstr("batching.survey")));
}

std::string Line(const std::string& role, const std::string& question, const std::string& answer,
                 const std::string& more = "") {
  return absl::StrCat(R"({"messages": [{"role": "user", "content": ")", question,
                      R"("}, {"role": ")", role, R"(", "content": ")", answer, R"("}])", more,
                      "}\n");
}

// A run on such lines ended with exit code 0, and had learnt half of them.
TEST(FineTune, RolesThatWouldTeachNothingAreOneErrorBeforeTheFirstStep) {
  const Folder folder;
  MakeTextModel(folder);
  std::string lines;
  for (int i = 0; i < 30; ++i)
    lines += Line(i % 2 == 0 ? "assistant" : i % 4 == 1 ? "gpt" : "asistant", "a", "b");
  folder.Write("roles.jsonl", lines);
  const Strings settings = {"model=model", "data=roles.jsonl", "held_out=0",
                            "steps=2",     "lora.r=2",         "samples_per_step=16"};

  const Ended ended = RunOne(FineTune(folder, "out", settings));

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(Count(ended.err, "15 of 30 samples cannot be trained on"), 1) << ended.err;
  EXPECT_THAT(ended.err, ContainsRegex("roles.jsonl, line [0-9]+: .* has the unknown role "
                                       "\"(gpt|asistant)\"; did you mean \"assistant\""));
  EXPECT_THAT(ended.err, HasSubstr("and 10 more: see "));
  EXPECT_EQ(Count(folder.Read("out/survey.txt"), "unknown role \"gpt\""), 8);
  EXPECT_THAT(ended.out, Not(HasSubstr("step 0/2")));
  Strings known = settings;
  known.push_back("roles=gpt,asistant");
  EXPECT_EQ(RunOne(FineTune(folder, "known", known)).exit_code, 0);
}

TEST(FineTune, WhatIsCutAndWhatTeachesNothingIsListedAndCounted) {
  const Folder folder;
  MakeTextModel(folder);
  std::string lines, words;
  for (int i = 0; i < 40; ++i) words += "word ";
  for (int i = 1; i <= 16; ++i) {
    const bool is_long_question = i == 3, is_long_answer = i == 8;
    lines += Line("assistant", is_long_question ? words : "Say it.", is_long_answer ? words : "it",
                  R"(, "id": 5)");
  }
  lines += R"({"messages": [{"role": "user", "content": "Nobody answers."}]})"
           "\n";
  folder.Write("chats.jsonl", lines);

  // One rank: it holds no sample back for a later step.
  const auto run = [&](const std::string& out, const Strings& more) {
    Strings settings = {"model=model", "data=chats.jsonl", "held_out=0",         "steps=3",
                        "lora.r=2",    "seq_len=32",       "samples_per_step=17"};
    settings.insert(settings.end(), more.begin(), more.end());
    return RunOne(FineTune(folder, out, settings, 1));
  };

  const Ended refused = run("refused", {});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("batching.survey: 2 of 17 samples are longer than seq_len"));
  EXPECT_THAT(refused.err, HasSubstr("chats.jsonl, line 8: "));
  EXPECT_THAT(refused.out, Not(HasSubstr("step 0/3")));

  const Ended dropped = run("dropped", {"on_cut=drop"});
  ASSERT_EQ(dropped.exit_code, 0) << dropped.err;
  // Other samples take the places of those that are left out.
  EXPECT_EQ(Values(folder, "dropped", Of::kSteps, "samples"), (std::vector<double>{17, 17, 17}));
  EXPECT_EQ(Values(folder, "dropped", Of::kSteps, "truncated_samples"),
            (std::vector<double>{0, 0, 0}));
  for (double tokens : Values(folder, "dropped", Of::kSteps, "truncated_tokens")) {
    EXPECT_GT(tokens, 64);
  }

  // An epoch is the 15 conversations that fit: 8 steps of 17, not 9.
  const Ended epochs = run("epochs", {"on_cut=drop", "epochs=8.5"});
  ASSERT_EQ(epochs.exit_code, 0) << epochs.err;
  EXPECT_EQ(Values(folder, "epochs", Of::kSteps, "samples").size(), 8u);

  const Ended ended = run("out", {"on_cut=cut"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("  messages  assistant 16  user 17\n"));
  for (double tokens : Values(folder, "out", Of::kSteps, "truncated_tokens")) {
    EXPECT_GT(tokens, 2);
  }
  const std::string survey = folder.Read("out/survey.txt");
  EXPECT_THAT(survey, ContainsRegex("chats.jsonl, line 3: [0-9]+ of [0-9]+ tokens are cut, "
                                    "[0-9]+ of them with a loss; nothing is left to learn\n"));
  EXPECT_THAT(survey, ContainsRegex("chats.jsonl, line 8: [0-9]+ of [0-9]+ tokens are cut, "
                                    "[0-9]+ of them with a loss\n"));
  EXPECT_THAT(survey, HasSubstr("chats.jsonl, line 17: no token has a loss\n"));
  EXPECT_EQ(Count(survey, "\n"), 3);
  EXPECT_THAT(ended.out, HasSubstr("data: messages, 17 samples; not read: id\n"));
  const size_t listed = ended.out.find("chats.jsonl, line 3: ");
  ASSERT_NE(listed, std::string::npos);
  EXPECT_LT(listed, ended.out.find("step 0/3"));
  EXPECT_THAT(ended.out, HasSubstr("samples_without_loss 2  truncated_loss_tokens "));
  // A step draws every sample once.
  EXPECT_EQ(Values(folder, "out", Of::kSteps, "truncated_samples"), (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(Values(folder, "out", Of::kSteps, "samples_without_loss"),
            (std::vector<double>{2, 2, 2}));
}

TEST(FineTune, ToolsReachTheTemplateAsAListAndAsText) {
  const Folder folder;
  MakeTextModel(folder);
  const std::string list = R"([{"type": "function", "function": {"name": "get_time"}}])";
  const std::string text =
      R"("[{\"type\": \"function\", \"function\": {\"name\": \"get_time\"}}]")";
  for (const std::string& tools : {list, text}) {
    std::string lines;
    for (int i = 0; i < 8; ++i)
      lines += Line("assistant", "Time?", "Noon.", ", \"tools\": " + tools);
    folder.Write("tools.jsonl", lines);

    const Ended ended = RunOne(FineTune(folder, "out" + std::to_string(tools.size()),
                                        {"model=model", "data=tools.jsonl", "held_out=2", "steps=1",
                                         "lora.r=2", "samples_per_step=2", "max_new_tokens=1"}));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("before: system # Tools {\"type\": \"function\", "
                                     "\"function\": {\"name\": \"get_time\"}} user Time? -> "));
    EXPECT_THAT(ended.out, Not(HasSubstr("not read")));
  }
}

TEST(FineTune, TheLearningRateIsThatOfAnAdapterOrOfAllWeights) {
  const Folder folder;
  MakeTextModel(folder);
  for (const auto& [rank, rate] : {std::pair{"lora.r=2", 2e-4}, std::pair{"lora.r=0", 2e-5}}) {
    const Ended ended = RunOne(FineTune(folder, rank,
                                        {"model=model", "data=chats.jsonl", "held_out=0", "steps=2",
                                         "warmup_steps=1", "samples_per_step=2", rank}));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_DOUBLE_EQ(Values(folder, rank, Of::kSteps, "lr").at(0), rate);
  }
}

// 10 conversations twice are 5 steps of 4. The noise of NEFTune changes what a step computes.
TEST(FineTune, LengthInEpochsScheduleAndNoiseAreSettings) {
  const Folder folder;
  MakeTextModel(folder);
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += Line("assistant", "Say it.", "it", "");
  folder.Write("few.jsonl", lines);
  for (const char* noise : {"neftune=0", "neftune=5"}) {
    const Ended ended = RunOne(
        FineTune(folder, noise,
                 {"model=model", "data=few.jsonl", "held_out=0", "epochs=2", "samples_per_step=4",
                  "lr=0.004", "schedule=linear", "warmup_steps=1", "lora.r=2", noise},
                 1));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(Values(folder, noise, Of::kSteps, "lr"),
                Pointwise(DoubleNear(1e-9), {0.004, 0.004, 0.003, 0.002, 0.001}));
  }
  EXPECT_NE(Values(folder, "neftune=0", Of::kSteps, "loss").at(0),
            Values(folder, "neftune=5", Of::kSteps, "loss").at(0));
}

TEST(FineTune, CountsThatCannotBeAreRefusedAtTheStart) {
  const Folder folder;
  for (const auto& [setting, message] :
       {std::pair{"steps=0", "steps must be a whole number of at least 1, not 0"},
        std::pair{"eval_every=0", "eval_every must be a whole number of at least 1, not 0"},
        std::pair{"lora.r=-1", "lora.r must be a whole number of at least 0, not -1"}}) {
    const Ended ended = RunOne(FineTune(folder, "out", {"model=there is none", setting}));
    EXPECT_THAT(ended.err, HasSubstr(message));
  }
}

TEST(FineTune, ARendererOfThatNameWritesTheChats) {
  const Folder folder;
  MakeTextModel(folder);
  const auto run = [&](const std::string& renderer) {
    return RunOne(FineTune(folder, renderer,
                           {"model=model", "data=chats.jsonl", "steps=1", "lora.r=2", "held_out=1",
                            "max_new_tokens=1", "renderer=" + renderer}));
  };

  const Ended ended = run("qwen3");
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("after: "));
  EXPECT_THAT(run("qwen9").err, HasSubstr("there is no renderer \"qwen9\""));
}

// The question is the same for each picture. One conversation has none.
TEST(FineTune, PicturesAreToldApart) {
  const Folder folder;
  Make(folder, "tiny_vision_model.lua", "driver/images/testdata");

  const Strings vision = {
      "model=model", "data=pictures.jsonl", "held_out=10",         "eval_every=60",
      "steps=60",    "max_new_tokens=12",   "parallel=fully_shard"};
  for (const Strings& more : {Strings{"lora.r=0", "lr=0.005"},
                              Strings{"lora.r=8", "lr=0.02", "parallel=data_parallel"}}) {
    Strings settings = vision;
    settings.insert(settings.end(), more.begin(), more.end());
    const Ended ended = RunOne(FineTune(folder, more[0], settings));

    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const std::vector<double> exact = Values(folder, more[0], Of::kValidation, "exact");
    ASSERT_EQ(exact.size(), 2u);
    EXPECT_EQ(exact[0], 0);
    EXPECT_GE(exact[1], 0.9) << more[0];
    EXPECT_EQ(Count(ended.err, "find_unused"), 0) << ended.err;
  }
}

TEST(FineTune, RegionsOnTheHostAndTilesLearnWhatThePlainRunDoes) {
  const Folder folder;
  Make(folder, "tiny_vision_model.lua", "driver/images/testdata");
  for (const std::string parallel : {"data_parallel", "fully_shard"}) {
    std::vector<std::vector<double>> losses;
    for (const Strings& more : {Strings{}, Strings{"checkpoint.offload=device"},
                                Strings{"checkpoint.offload=host", "tiles=4"}}) {
      Strings settings = {"model=model", "data=pictures.jsonl", "held_out=0", "steps=4", "lr=0.02",
                          "lora.r=8",    "parallel=" + parallel};
      settings.insert(settings.end(), more.begin(), more.end());
      const std::string out = absl::StrCat(parallel, more.size());
      const Ended ended = RunOne(FineTune(folder, out, settings));
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      losses.push_back(Values(folder, out, Of::kSteps, "loss"));
    }
    EXPECT_LT(losses[0].back(), losses[0].front());
    EXPECT_THAT(losses[1], Pointwise(DoubleNear(1e-4), losses[0]));
    EXPECT_THAT(losses[2], Pointwise(DoubleNear(1e-4), losses[0]));
  }
  const Ended wrong =
      RunOne(FineTune(folder, "wrong", {"model=model", "checkpoint.offload=disk", "steps=1"}));
  EXPECT_THAT(wrong.err,
              HasSubstr("--set checkpoint.offload takes none, device or host, not disk"));
}

TEST(FineTune, TheMergedModelAnswersAsTheAdapterDoes) {
  const Folder folder;
  MakeTextModel(folder);

  const Ended ended = RunOne(FineTune(folder, "out",
                                      {"model=model", "data=chats.jsonl", "steps=10", "lr=0.05",
                                       "held_out=1", "lora.r=8", "merge=true"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(absl::StrCat("wrote ", folder.path(), "/out/model\n")));
  const auto answer = [&](const Strings& model) {
    Strings arguments = {"--nproc", "1", "--run-dir", "chat", DataFile("scripts/chat.lua")};
    for (const char* setting : {"temperature=0", "max_new_tokens=20"}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    for (const std::string& setting : model) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    Command command = Lockstep(folder, arguments);
    command.input = "How is 3 written?\n";
    const std::string out = RunOne(command).out;
    return out.substr(out.find("> "));
  };
  const std::string merged = answer({"model=out/model"});
  EXPECT_EQ(merged, answer({"model=model", "adapter=out/adapter"}));
  EXPECT_NE(merged, answer({"model=model"}));
}

TEST(FineTune, KilledAndResumedItWritesTheSameBits) {
  const Folder folder;
  MakeTextModel(folder);
  const Strings settings = {"model=model",        "steps=12",      "lr=0.01",
                            "samples_per_step=8", "save_every=3",  "eval_every=4",
                            "max_new_tokens=8",   "answers=8",     "lora.r=4",
                            "lora.dropout=0.1",   "keep_best=true"};
  ASSERT_EQ(RunOne(FineTune(folder, "whole", settings)).exit_code, 0);

  Child killed(FineTune(folder, "killed", settings));
  killed.WaitForLine("step 7/12");
  killed.Send(SIGKILL);
  EXPECT_EQ(killed.Wait().exit_code, 128 + SIGKILL);
  const Ended resumed = RunOne(FineTune(folder, "killed", settings));

  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, Not(HasSubstr("before: ")));
  EXPECT_THAT(resumed.out, HasSubstr("step 11/12"));
  EXPECT_THAT(resumed.out, Not(HasSubstr("step 0/12")));
  const std::string file = "/adapter/adapter_model.safetensors";
  EXPECT_TRUE(folder.Read("whole" + file) == folder.Read("killed" + file));
  EXPECT_EQ(folder.List("killed/best"), folder.List("whole/best"));
  EXPECT_EQ(Values(folder, "whole", Of::kSteps, "loss"),
            Values(folder, "killed", Of::kSteps, "loss"));
}

TEST(FineTune, WithoutAModelItTakesTheNewestOfPretrain) {
  const Folder folder;
  const Ended without = RunOne(FineTune(folder, "out", {}));
  EXPECT_EQ(without.exit_code, 1);
  ExpectOneComplaint(without,
                     "there is no model of pretrain.lua in runs/; run that first, or give --set "
                     "model=FOLDER");

  MakeTextModel(folder);
  folder.Write("runs/pretrain-20261101-120000-aaaa/model/config.json", "{}");
  folder.Write("runs/pretrain-20261103-120000-aaaa/metrics.jsonl", "");
  folder.Write("runs/pretrain-20261102-120000-bbbb/note", "");
  ASSERT_EQ(rename(folder.Path("model").c_str(),
                   folder.Path("runs/pretrain-20261102-120000-bbbb/model").c_str()),
            0);
  const Ended found = RunOne(FineTune(folder, "out", {"steps=1", "held_out=0"}));
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_THAT(folder.Read("out/adapter/adapter_config.json"), HasSubstr("q_proj"));
}

}  // namespace
}  // namespace lockstep::tests
