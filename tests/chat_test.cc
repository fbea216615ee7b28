// scripts/chat.lua with its input from a pipe: what it writes token by token is what the model
// answers to the conversation so far.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Lines = std::vector<std::string>;

Lines OutputOf(const Folder& folder, const std::vector<std::string>& arguments,
               const std::string& input = "") {
  Command command = Lockstep(folder, arguments);
  command.input = input;
  const Ended ended = RunOne(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  Lines lines = absl::StrSplit(ended.out, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

// Makes a model's folder by a script of tests/scripts.
void Make(const Folder& folder, const std::string& script, const std::string& tokenizer,
          const std::string& second) {
  OutputOf(folder, {"--nproc", "1", "--run-dir", "made", DataFile(script), DataFile(tokenizer),
                    DataFile(second), folder.path()});
}

void MakeTextModel(const Folder& folder) {
  Make(folder, "tests/scripts/tiny_chat_model.lua", "driver/text/testdata/qwen2.json",
       "driver/lua/lockstep/text/chat/chatml_fixture.jinja");
}

// What the model answers to each line.
Lines Transcript(const Folder& folder, const std::string& adapter, const Lines& lines) {
  std::vector<std::string> arguments = {
      "--nproc", "1",     "--run-dir", "expected", DataFile("tests/scripts/chat_transcript.lua"),
      "--",      "model", adapter};
  arguments.insert(arguments.end(), lines.begin(), lines.end());
  return OutputOf(folder, arguments);
}

// What chat.lua prints where the user types these lines. Each line begins with the prompt.
Lines Chat(const Folder& folder, const Lines& lines, const std::vector<std::string>& settings) {
  std::vector<std::string> arguments = {"--nproc", "1", "--run-dir", "out",
                                        DataFile("scripts/chat.lua")};
  for (const char* setting : {"model=model", "max_new_tokens=12", "temperature=0"}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  return OutputOf(folder, arguments, absl::StrCat(absl::StrJoin(lines, "\n"), "\n"));
}

TEST(Chat, EachAnswerFollowsFromTheConversationUntilItIsReset) {
  const Folder folder;
  MakeTextModel(folder);

  const Lines expected =
      Transcript(folder, "", {"Hello, you?", "And 3?", "/reset", "Hello, you?", "And 3?"});
  const Lines out =
      Chat(folder, {"Hello, you?", "", "And 3?", "/reset", "/what", "Hello, you?"}, {});

  ASSERT_THAT(expected, SizeIs(4));
  EXPECT_EQ(expected[0], expected[2]);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(out, (Lines{"Talk to model. /reset forgets the conversation, Ctrl-D ends.",
                        absl::StrCat("> ", expected[0]), absl::StrCat("> > ", expected[1]),
                        "> > unknown command /what; there are /image PATH and /reset",
                        absl::StrCat("> ", expected[2]), "> "}));
}

TEST(Chat, AnAdapterChangesTheAnswers) {
  const Folder folder;
  MakeTextModel(folder);

  const Lines expected = Transcript(folder, "adapter", {"Hello, you?"});
  const Lines out = Chat(folder, {"Hello, you?"}, {"adapter=adapter"});

  EXPECT_NE(Transcript(folder, "", {"Hello, you?"}), expected);
  EXPECT_EQ(out[0], "4 adapters");
  EXPECT_EQ(out[2], absl::StrCat("> ", expected[0]));
}

TEST(Chat, APictureBelongsToTheNextMessage) {
  const Folder folder;
  Make(folder, "tests/scripts/tiny_vision_model.lua", "driver/text/testdata/qwen2.json",
       "driver/images/testdata");
  const std::string picture = DataFile("driver/images/testdata/jpeg_420.jpg");

  const Lines expected = Transcript(folder, "", {absl::StrCat(picture, ": Which?"), "Sure?"});
  const Lines out = Chat(folder, {absl::StrCat("/image ", picture), "Which?", "Sure?"}, {});

  EXPECT_NE(Transcript(folder, "", {"Which?"})[0], expected[0]);
  EXPECT_THAT(out[1], HasSubstr(" pixels; now ask about it"));
  EXPECT_EQ(out[2], absl::StrCat("> ", expected[0]));
  EXPECT_EQ(out[3], absl::StrCat("> ", expected[1]));
}

TEST(Chat, MistakesOfTheUserDoNotEndTheConversation) {
  const Folder folder;
  MakeTextModel(folder);
  const Folder vision;
  Make(vision, "tests/scripts/tiny_vision_model.lua", "driver/text/testdata/qwen2.json",
       "driver/images/testdata");

  EXPECT_EQ(Chat(folder, {"/image x.png"}, {})[1], "> model takes no pictures");
  const Lines out = Chat(vision, {"/image x.png", "<|image_pad|>", "Which?"}, {});
  EXPECT_THAT(out[1], HasSubstr("images.read: x.png: cannot be read"));
  EXPECT_THAT(out[2], HasSubstr("the text has more placeholders"));
  EXPECT_EQ(out[3], absl::StrCat("> ", Transcript(vision, "", {"Which?"})[0]));
}

TEST(Chat, OneRankTalks) {
  const Folder folder;
  Ended ended = RunOne(Lockstep(folder, {"--nproc", "2", "--run-dir", "out",
                                         DataFile("scripts/chat.lua"), "--set", "model=x"}));
  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended,
                     "chat.lua runs on one rank, not on 2: ./run --nproc 1 scripts/chat.lua");

  ended =
      RunOne(Lockstep(folder, {"--nproc", "1", "--run-dir", "out", DataFile("scripts/chat.lua")}));
  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "give --set model=FOLDER, or a name in Hugging Face's cache");
}

}  // namespace
}  // namespace lockstep::tests
