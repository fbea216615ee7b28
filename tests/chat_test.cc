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

using ::testing::StartsWith;
using Strings = std::vector<std::string>;

std::string OutputOf(const Folder& folder, const Strings& arguments,
                     const std::string& input = "") {
  Command command = Lockstep(folder, arguments);
  command.input = input;
  const Ended ended = RunOne(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return ended.out;
}

// Makes a model's folder by a script of tests/scripts.
void Make(const Folder& folder, const std::string& script, const std::string& second) {
  OutputOf(folder, {"--nproc", "1", "--run-dir", "made", DataFile("tests/scripts/" + script),
                    DataFile("driver/text/testdata/qwen2.json"), DataFile(second), folder.path()});
}

void MakeTextModel(const Folder& folder) {
  Make(folder, "tiny_chat_model.lua", "driver/lualib/lockstep/text/chat/chatml_fixture.jinja");
}

void MakeVisionModel(const Folder& folder) {
  Make(folder, "tiny_vision_model.lua", "driver/images/testdata");
}

// Returns the answers of the model to each line, with their ends of line.
Strings Transcript(const Folder& folder, const std::string& adapter, const Strings& lines) {
  Strings arguments = {
      "--nproc", "1",     "--run-dir", "expected", DataFile("tests/scripts/chat_transcript.lua"),
      "--",      "model", adapter};
  arguments.insert(arguments.end(), lines.begin(), lines.end());
  Strings answers = absl::StrSplit(OutputOf(folder, arguments), "<<end>>\n");
  EXPECT_EQ(answers.back(), "");
  answers.pop_back();
  for (std::string& answer : answers) answer += '\n';
  return answers;
}

// Returns the output of chat.lua after its first line, for a user who types these lines.
std::string Chat(const Folder& folder, const Strings& lines, const Strings& settings = {}) {
  Strings arguments = {"--nproc", "1", "--run-dir", "out", DataFile("scripts/chat.lua")};
  for (const char* setting : {"model=model", "max_new_tokens=12", "temperature=0"}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  const std::string out =
      OutputOf(folder, arguments, absl::StrCat(absl::StrJoin(lines, "\n"), "\n"));
  const size_t end = out.find("Ctrl-D ends.\n");
  EXPECT_NE(end, std::string::npos) << out;
  return out.substr(end + 13);
}

TEST(Chat, EachAnswerFollowsFromTheConversationUntilItIsReset) {
  const Folder folder;
  MakeTextModel(folder);

  const Strings expected =
      Transcript(folder, "", {"Hello, you?", "And 3?", "/reset", "Hello, you?", "And 3?"});
  const std::string out =
      Chat(folder, {"Hello, you?", "", "And 3?", "/reset", "/what", "Hello, you?"});

  ASSERT_EQ(expected.size(), 4u);
  EXPECT_EQ(expected[0], expected[2]);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(out, absl::StrCat("> ", expected[0], "> > ", expected[1],
                              "> > unknown command /what; there are /image PATH and /reset\n> ",
                              expected[2], "> \n"));
}

TEST(Chat, AnAdapterChangesTheAnswers) {
  const Folder folder;
  MakeTextModel(folder);

  const Strings expected = Transcript(folder, "adapter", {"Hello, you?"});

  EXPECT_NE(Transcript(folder, "", {"Hello, you?"}), expected);
  EXPECT_EQ(Chat(folder, {"Hello, you?"}, {"adapter=adapter"}),
            absl::StrCat("> ", expected[0], "> \n"));
}

TEST(Chat, APictureBelongsToTheNextMessage) {
  const Folder folder;
  MakeVisionModel(folder);
  const std::string picture = DataFile("driver/images/testdata/jpeg_420.jpg");

  const Strings expected = Transcript(folder, "", {absl::StrCat(picture, ": Which?"), "Sure?"});

  EXPECT_NE(Transcript(folder, "", {"Which?"})[0], expected[0]);
  EXPECT_EQ(Chat(folder, {absl::StrCat("/image ", picture), "Which?", "Sure?"}),
            absl::StrCat("> ", picture, ": 37 x 29 pixels; now ask about it\n> ", expected[0], "> ",
                         expected[1], "> \n"));
}

TEST(Chat, MistakesOfTheUserDoNotEndTheConversation) {
  const Folder text, vision;
  MakeTextModel(text);
  MakeVisionModel(vision);

  EXPECT_THAT(Chat(text, {"/image x.png"}), StartsWith("> model takes no pictures\n> "));
  EXPECT_EQ(Chat(vision, {"/image x.png", "<|image_pad|>", "Which?"}),
            absl::StrCat("> images.read: x.png: cannot be read: No such file or directory\n"
                         "> chat:encode: the text has more placeholders <|image_pad|> than the "
                         "messages have pictures, 0\n> ",
                         Transcript(vision, "", {"Which?"})[0], "> \n"));
}

TEST(Chat, OneRankTalks) {
  const Folder folder;
  Ended ended = RunOne(Lockstep(folder, {"--nproc", "2", "--run-dir", "out",
                                         DataFile("scripts/chat.lua"), "--set", "model=x"}));
  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "chat.lua runs on one rank, not on 2: start it with --nproc 1");

  ended =
      RunOne(Lockstep(folder, {"--nproc", "1", "--run-dir", "out", DataFile("scripts/chat.lua")}));
  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "give --set model=FOLDER, or a name in Hugging Face's cache");
}

}  // namespace
}  // namespace lockstep::tests
