#include "driver/settings/command_line.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

CommandLine Parse(const std::vector<std::string>& arguments) {
  absl::StatusOr<CommandLine> parsed = ParseCommandLine(arguments);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(CommandLine{});
}

std::string ErrorOf(const std::vector<std::string>& arguments) {
  return std::string(ParseCommandLine(arguments).status().message());
}

TEST(CommandLine, NoScriptMeansAnInteractiveSession) { EXPECT_EQ(Parse({}).script, ""); }

TEST(CommandLine, HelpAndTheVersionAreAskedForAnywhereBeforeTwoDashes) {
  EXPECT_TRUE(Parse({"--version"}).version);
  EXPECT_TRUE(Parse({"train.lua", "--version"}).version);
  EXPECT_FALSE(Parse({"train.lua", "--", "--version"}).version);
  EXPECT_TRUE(Parse({"train.lua", "-h"}).help);
  EXPECT_FALSE(Parse({"train.lua", "--", "--help"}).help);
}

TEST(CommandLine, ADryRunIsAskedForAnywhere) {
  EXPECT_FALSE(Parse({"train.lua"}).dry_run);
  EXPECT_TRUE(Parse({"--dry-run", "train.lua"}).dry_run);
  EXPECT_TRUE(Parse({"train.lua", "--nproc", "8", "--dry-run"}).dry_run);
}

TEST(CommandLine, OptionsStandBeforeAndAfterTheScript) {
  const CommandLine line =
      Parse({"--nproc", "4", "train.lua", "--set", "optimizer.lr=1e-3", "--set=name=a=b", "input"});

  EXPECT_EQ(line.nproc, 4);
  EXPECT_EQ(line.script, "train.lua");
  EXPECT_THAT(line.settings, ElementsAre(Pair("optimizer.lr", "1e-3"), Pair("name", "a=b")));
  EXPECT_THAT(line.script_arguments, ElementsAre("input"));
}

TEST(CommandLine, ArgumentsAfterTwoDashesAreTheScripts) {
  EXPECT_THAT(Parse({"train.lua", "--", "--nproc", "2"}).script_arguments,
              ElementsAre("--nproc", "2"));
}

TEST(CommandLine, CollectivesAreComparedWhereAskedFor) {
  EXPECT_TRUE(Parse({"--debug-collectives", "train.lua"}).debug_collectives);
  EXPECT_FALSE(Parse({"train.lua", "--", "--debug-collectives"}).debug_collectives);
}

TEST(CommandLine, ARunIsStartedAgainWhereAskedFor) {
  EXPECT_EQ(Parse({"train.lua"}).restarts, std::nullopt);
  EXPECT_EQ(Parse({"--restarts", "10", "train.lua"}).restarts, 10);
  EXPECT_EQ(Parse({"train.lua", "--restarts=0"}).restarts, 0);
}

TEST(CommandLine, SlowRanksAreEvictedWhereAskedFor) {
  EXPECT_EQ(Parse({"train.lua"}).evict_slow, std::nullopt);
  EXPECT_EQ(Parse({"train.lua", "--evict-slow", "1.5"}).evict_slow, 1.5);
  EXPECT_EQ(Parse({"train.lua"}).verify_every, std::nullopt);
  EXPECT_EQ(Parse({"train.lua", "--verify-every", "1000"}).verify_every, 1000);
}

TEST(CommandLine, ASettingMayHaveAnEmptyValue) {
  EXPECT_THAT(Parse({"a.lua", "--set", "name="}).settings, ElementsAre(Pair("name", "")));
}

TEST(CommandLine, ErrorsNameTheArgumentAndWhatWasExpected) {
  const struct {
    std::vector<std::string> arguments;
    const char* message;
  } kCases[] = {
      {{"--nproc", "0", "a.lua"},
       "--nproc takes a whole number of ranks from 1 to 1024, not \"0\""},
      {{"--nproc", "-3", "a.lua"}, "not \"-3\""},
      {{"--restarts", "-1", "a.lua"},
       "--restarts takes a whole number of restarts from 0 to 100000, not \"-1\""},
      {{"--evict-slow", "1", "a.lua"}, "--evict-slow takes a number above 1, not \"1\""},
      {{"--verify-every", "0", "a.lua"},
       "--verify-every takes a whole number of steps from 1 to 1000000000, not \"0\""},
      {{"--evict-slow", "inf", "a.lua"}, "--evict-slow takes a number above 1, not \"inf\""},
      {{"--evict-slow=x", "a.lua"}, "--evict-slow takes a number above 1, not \"x\""},
      {{"--restart", "3", "a.lua"}, "did you mean \"--restarts\"?"},
      {{"--nproc", "two", "a.lua"}, "not \"two\""},
      {{"--nproc", "99999", "a.lua"}, "not \"99999\""},
      {{"--nproc"}, "--nproc needs a value"},
      {{"--timeout", "0"}, "--timeout takes a whole number of seconds from 1 to 604800"},
      {{"--nprc", "2"}, "unknown option \"--nprc\" (did you mean \"--nproc\"?)"},
      {{"--nprocs", "2"}, "did you mean \"--nproc\"?"},
      {{"--rundir=x"}, "did you mean \"--run-dir\"?"},
      {{"--dryrun", "a.lua"}, "did you mean \"--dry-run\"?"},
      {{"--verbose"}, "unknown option \"--verbose\";"},
      {{"a.lua", "--set", "lr"}, "--set takes key=value, not \"lr\""},
      {{"a.lua", "--set", "=3"}, "--set takes key=value, not \"=3\""},
      {{"a.lua", "--run-dir="}, "--run-dir needs a folder's name"},
      {{""}, "the script's name is empty"},
      {{"--set", "a\nb\x1b[2J\x7f"}, "--set takes key=value, not \"a\\nb\\x1b[2J\\x7f\""},
      {{"--\r\n"}, "unknown option \"--\\x0d\\n\""},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(ErrorOf(c.arguments), HasSubstr(c.message));
    EXPECT_THAT(ErrorOf(c.arguments), HasSubstr("--help"));
  }
}

// Each of a thousand command lines, made of pieces of right ones, is taken or refused in one line.
TEST(CommandLine, MutatedArgumentsAreTakenOrRefusedInOneLine) {
  // bazel test --test_env=LOCKSTEP_FUZZ_SEED=7 //driver/settings:command_line_test
  const char* const given_seed = std::getenv("LOCKSTEP_FUZZ_SEED");
  const int seed = given_seed != nullptr ? std::atoi(given_seed) : 20261121;
  std::mt19937 random(seed);
  int refused = 0;
  const std::vector<std::string> pieces = {"--nproc",
                                           "--nproc=",
                                           "--set",
                                           "--set=a=b",
                                           "--run-dir",
                                           "--timeout",
                                           "--list",
                                           "--help",
                                           "--",
                                           "-",
                                           "=",
                                           "--debug-collectives",
                                           "a.lua",
                                           "",
                                           "4",
                                           "-1",
                                           "lr=1",
                                           "a.b.c=",
                                           "99999999999999999999",
                                           "\xff\xfe",
                                           "--dry-run",
                                           "0x10",
                                           "1e3",
                                           "--nproc=2=3=",
                                           "\n",
                                           " ",
                                           "--nprc"};
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::string> arguments(random() % 7);
    for (std::string& argument : arguments) {
      argument = pieces[random() % pieces.size()];
      if (random() % 4 == 0) argument += pieces[random() % pieces.size()];
      if (!argument.empty() && random() % 8 == 0)
        argument[random() % argument.size()] = static_cast<char>(random());
    }
    SCOPED_TRACE(absl::StrCat("round ", round, " of LOCKSTEP_FUZZ_SEED ", seed));
    const absl::StatusOr<CommandLine> parsed = ParseCommandLine(arguments);
    if (parsed.ok()) {
      EXPECT_GE(parsed->nproc.value_or(1), 1);
      EXPECT_GE(parsed->timeout_s.value_or(1), 1);
      continue;
    }
    ++refused;
    const std::string message(parsed.status().message());
    EXPECT_THAT(message, HasSubstr("; --help lists the options"));
    EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](char c) {
      return absl::ascii_iscntrl(static_cast<unsigned char>(c));
    })) << message;
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace lockstep::driver
