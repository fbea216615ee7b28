#include "driver/command_line.h"

#include <string>
#include <vector>

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

TEST(CommandLine, WhatFollowsTwoDashesIsTheScripts) {
  EXPECT_THAT(Parse({"train.lua", "--", "--nproc", "2"}).script_arguments,
              ElementsAre("--nproc", "2"));
}

TEST(CommandLine, CollectivesAreComparedWhereAskedFor) {
  EXPECT_TRUE(Parse({"--debug-collectives", "train.lua"}).debug_collectives);
  EXPECT_FALSE(Parse({"train.lua", "--", "--debug-collectives"}).debug_collectives);
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
      {{"--nproc", "two", "a.lua"}, "not \"two\""},
      {{"--nproc", "99999", "a.lua"}, "not \"99999\""},
      {{"--nproc"}, "--nproc needs a value"},
      {{"--timeout", "0"}, "--timeout takes a whole number of seconds from 1 to 604800"},
      {{"--nprc", "2"}, "unknown option \"--nprc\""},
      {{"a.lua", "--set", "lr"}, "--set takes key=value, not \"lr\""},
      {{"a.lua", "--set", "=3"}, "--set takes key=value, not \"=3\""},
      {{"a.lua", "--run-dir="}, "--run-dir needs a folder's name"},
      {{""}, "the script's name is empty"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(ErrorOf(c.arguments), HasSubstr(c.message));
    EXPECT_THAT(ErrorOf(c.arguments), HasSubstr("--help"));
  }
}

}  // namespace
}  // namespace lockstep::driver
