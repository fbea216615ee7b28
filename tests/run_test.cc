// Tests a script's surroundings: its configuration, its modules, its folder; and the session
// without a script.

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
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

Ended RunScript(const std::string& code, const std::vector<std::string>& arguments) {
  const Folder folder;
  folder.Write("train.lua", code);
  std::vector<std::string> all = {"train.lua"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunOne(Lockstep(folder, all));
}

// --- Configuration -------------------------------------------------------------------------------

constexpr char kConfigScript[] =
    "local config = require('lockstep.run').config {\n"
    "  steps = 10, name = 'base', resume = false, optimizer = { lr = 1e-3, betas = { 0.9, 0.95 } "
    "},\n"
    "}\n"
    "print(type(config.steps), config.steps, type(config.name), config.name, type(config.resume),\n"
    "  config.resume, config.optimizer.lr, table.concat(config.optimizer.betas, ','))\n";

TEST(Set, ReachesTheConfigurationAndKeepsTheTypeOfTheDefault) {
  const struct {
    std::vector<std::string> settings;
    const char* printed;
  } kCases[] = {
      {{}, "number\t10\tstring\tbase\tboolean\tfalse\t0.001\t0.9,0.95\n"},
      {{"--set", "steps=4"}, "number\t4\tstring\tbase\tboolean\tfalse\t0.001\t0.9,0.95\n"},
      {{"--set", "optimizer.lr=1e-2", "--set", "resume=true"},
       "number\t10\tstring\tbase\tboolean\ttrue\t0.01\t0.9,0.95\n"},
      {{"--set", "name=12"}, "number\t10\tstring\t12\tboolean\tfalse\t0.001\t0.9,0.95\n"},
      {{"--set", "name=a=b"}, "number\t10\tstring\ta=b\tboolean\tfalse\t0.001\t0.9,0.95\n"},
      {{"--set", "optimizer.betas=0.5,0.75"},
       "number\t10\tstring\tbase\tboolean\tfalse\t0.001\t0.5,0.75\n"},
      {{"--set", "steps=4", "--set", "steps=5"},
       "number\t5\tstring\tbase\tboolean\tfalse\t0.001\t0.9,0.95\n"},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> arguments = {"--nproc", "1"};
    arguments.insert(arguments.end(), c.settings.begin(), c.settings.end());

    const Ended ended = RunScript(kConfigScript, arguments);

    EXPECT_THAT(ended.out, AllOf(StartsWith("run folder: /"), EndsWith(c.printed))) << ended.err;
  }
}

TEST(RunFolder, IsPrintedOnceAtTheStart) {
  const Folder folder;
  folder.Write("train.lua",
               "require('lockstep.run').config {}\n"
               "require('lockstep.log').print('trained')\n");

  const std::string out = RunOne(Lockstep(folder, {"--nproc", "2", "train.lua"})).out;

  const std::vector<std::string> runs = folder.List("runs");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(out, absl::StrCat("run folder: ", folder.path(), "/runs/", runs[0], "\ntrained\n"));
  EXPECT_EQ(RunOne(Lockstep(folder, {"--dry-run", "train.lua"})).out.find("run folder"),
            std::string::npos);
}

TEST(Set, MistakesAreReportedOnceWithTheKeyAndTheKnownKeys) {
  const struct {
    const char* setting;
    const char* message;
  } kCases[] = {
      {"stps=4", "did you mean \"steps\"?"},
      {"optimizer.rl=1", "did you mean \"optimizer.lr\"?"},
      {"optimizer=1", "optimizer is a group of keys"},
      {"steps=many", "--set steps=many: the value must be a number"},
      {"resume=1", "--set resume=1: the value must be "},
      {"optimizer.betas=0.5,x", "the value must be a number"},
  };
  for (const auto& c : kCases) {
    const Ended ended = RunScript(kConfigScript, {"--nproc", "1", "--set", c.setting});

    EXPECT_EQ(ended.exit_code, 2) << c.setting;
    EXPECT_EQ(ended.out, "");
    ExpectOneComplaint(ended, c.message);
    EXPECT_THAT(ended.err, HasSubstr("train.lua:1:"));
  }
}

// Numbers that config.json cannot hold, and text that would break a message into lines.
TEST(Set, AnyTextIsTakenOrRefusedInOneLine) {
  const struct {
    const char* setting;
    int exit_code;
    const char* said;
  } kCases[] = {
      {"steps=nan", 2, "--set steps=nan: the value must be a finite number"},
      {"optimizer.lr=inf", 2, "--set optimizer.lr=inf: the value must be a finite number"},
      {"optimizer.betas=0.9,-inf", 2, "the value must be a finite number"},
      {"steps=1e999", 2, "the value must be a finite number"},
      {"steps=0x10", 0, "number\t16\tstring\tbase"},
      {"steps=4\n5", 2, "--set steps=4\\n5: the value must be a number"},
      {"st\x1b[2Jeps=1", 2, "--set st\\x1b[2Jeps=1: the script has no such key"},
      {"\n", 2, "--set takes key=value, not \"\\n\""},
      {"name=a\tb", 0, "string\ta\tb\t"},
      {"name=\xff", 2, "the value must be text in UTF-8"},
      {"name=", 0, "string\t\tboolean"},
      {"%d%s=%n", 2, "--set %d%s=%n: the script has no such key"},
  };
  for (const auto& c : kCases) {
    const Folder folder;
    folder.Write("train.lua", kConfigScript);

    const Ended ended = RunOne(
        Lockstep(folder, {"--nproc", "1", "--run-dir", "run", "train.lua", "--set", c.setting}));

    EXPECT_EQ(ended.exit_code, c.exit_code) << c.setting << ended.err;
    if (c.exit_code == 0) {
      EXPECT_THAT(ended.out, HasSubstr(c.said));
      EXPECT_EQ(Count(folder.Read("run/config.json"), "NaN"), 0);
      continue;
    }
    EXPECT_EQ(ended.out, "");
    ExpectOneComplaint(ended, c.said);
    const std::string complaint = ended.err.substr(0, ended.err.find('\n'));
    EXPECT_THAT(complaint, AllOf(StartsWith("lockstep: "), HasSubstr(c.said)));
  }
}

// A missing script, a folder and an unused setting also appear in messages.
TEST(CommandLine, NamesOfWhatIsNotThereAreShownInOneLine) {
  const Folder folder;
  folder.Write("train.lua", "");
  const std::vector<std::string> kCases[] = {
      {"a\nb.lua"}, {"--list", "a\nb"}, {"--nproc", "1", "train.lua", "--set", "a\nb=1"}};
  for (const auto& arguments : kCases) {
    const Ended ended = RunOne(Lockstep(folder, arguments));

    EXPECT_NE(ended.exit_code, 0);
    ExpectOneComplaint(ended, "a\\nb");
    EXPECT_EQ(Count(ended.err, "\n"), 1) << ended.err;
  }
}

TEST(Set, ReachesEveryRankAndIsRefusedOnce) {
  const std::string script = absl::StrCat(kConfigScript, "print(config.steps)");

  const Ended taken = RunScript(script, {"--nproc", "2", "--set", "steps=4"});
  const Ended refused = RunScript(script, {"--nproc", "2", "--set", "stps=4"});

  EXPECT_EQ(Count("\n" + taken.out, "\n4\n"), 1) << taken.out;
  EXPECT_EQ(Count(taken.out, "[rank 1] 4\n"), 1) << taken.out;
  EXPECT_EQ(refused.exit_code, 2);
  ExpectOneComplaint(refused, "did you mean \"steps\"?");
}

TEST(Set, IsRefusedWhereTheScriptReadsNoConfiguration) {
  const Ended ended = RunScript("print('done')", {"--nproc", "2", "--set", "lr=1"});

  EXPECT_EQ(ended.exit_code, 2);
  ExpectOneComplaint(ended, "--set lr was given, but the script has no run.config{...}");
}

// A script that catches the error goes on, and what fails later is an error of the script.
TEST(Set, ARefusalThatTheScriptCatchesIsNoReasonOfALaterFailure) {
  const Ended ended = RunScript(
      "local run = require 'lockstep.run'\n"
      "assert(not pcall(run.config, { steps = 1 }))\n"
      "error('later')",
      {"--nproc", "1", "--set", "stps=4"});

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "train.lua:3: later");
}

// --- Modules -------------------------------------------------------------------------------------

TEST(Require, FindsModulesOfTheScriptsFolderAndOfTheLibrary) {
  const Folder folder;
  folder.Write("scripts/train.lua",
               "print(require('helper').name, require('models.tiny').name, require('pack').name,\n"
               "  type(require('lockstep.nn').Linear) ~= 'nil')");
  folder.Write("scripts/helper.lua", "return {name = 'helper'}");
  folder.Write("scripts/models/tiny.lua", "return {name = 'tiny'}");
  folder.Write("scripts/pack/init.lua", "return {name = 'pack'}");
  folder.Write("helper.lua", "return {name = 'the one where the user stands'}");

  const Ended ended = RunOne(Lockstep(folder, {"--nproc", "1", "scripts/train.lua"}));

  EXPECT_EQ(ended.out, "helper\ttiny\tpack\ttrue\n") << ended.err;
}

TEST(Require, AFileOfTheScriptsFolderHidesNoModuleOfTheLibrary) {
  const Folder folder;
  folder.Write("train.lua", "print(require('lockstep.schedule') ~= 'hidden')");
  folder.Write("lockstep/schedule.lua", "return 'hidden'");

  EXPECT_EQ(RunOne(Lockstep(folder, {"--nproc", "1", "train.lua"})).out, "true\n");
}

// --- The interactive session ---------------------------------------------------------------------

TEST(Session, EvaluatesWhatAPipeGivesAndOutlivesMistakes) {
  Command command = Lockstep(Folder(), {});
  command.input =
      "1 + 2\n"
      "x = torch.ones({2, 2})\n"
      "x:sum():item() * 10\n"
      "function seven()\n"
      "return 7\n"
      "end\n"
      "seven()\n"
      "error('a mistake')\n"
      "local = 3\n"
      "'still here'\n";

  const Ended ended = RunOne(command);

  EXPECT_EQ(ended.exit_code, 0);
  for (const char* printed : {"3\n", "40\n", "7\n", "a mistake", "near '='", "still here\n"}) {
    EXPECT_THAT(ended.out + ended.err, HasSubstr(printed));
  }
}

TEST(Session, ExitSaysHowToLeaveAndASessionThatWritesNothingLeavesNoFolder) {
  const Folder folder;
  for (const char* typed : {"exit", "exit()", "quit", "quit()"}) {
    Command command = Lockstep(folder, {});
    command.input = absl::StrCat(typed, "\nhelp('log.step')\nprint('still here')\n");

    const Ended ended = RunOne(command);

    EXPECT_THAT(ended.out, HasSubstr("> Ctrl-D or os.exit() ends the session\n")) << typed;
    EXPECT_THAT(ended.out, HasSubstr("still here\n"));
    EXPECT_THAT(ended.out + ended.err, Not(HasSubstr("run folder")));
  }
  EXPECT_THAT(folder.List(), IsEmpty());

  Command command = Lockstep(folder, {});
  command.input = "log.record('validation', { loss = 1 })\n";
  EXPECT_THAT(RunOne(command).out, HasSubstr("run folder: "));
  EXPECT_THAT(folder.List("runs"), ElementsAre(StartsWith("interactive-")));
}

// --- The check of ranks --------------------------------------------------------------------------

TEST(Check, TriesTheRanksAndIsNoFile) {
  const Folder folder;

  const Ended ended = RunOne(Lockstep(folder, {"--nproc", "2", "check", "--set", "seconds=0",
                                               "--set", "slower=1e9", "--set", "megabytes=1"}));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("rank  host"), HasSubstr("2 ranks are well\n")));
  EXPECT_THAT(folder.List("runs"), ElementsAre(StartsWith("check-")));
}

TEST(Check, LeavesItsNameToAFile) {
  const Folder folder;
  folder.Write("check", "print('my own check')");

  const Ended ended = RunOne(Lockstep(folder, {"--nproc", "1", "check"}));

  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out, "my own check\n");
}

// --- The run's folder ----------------------------------------------------------------------------

constexpr char kLoggingScript[] =
    "local run, log = require 'lockstep.run', require 'lockstep.log'\n"
    "run.config { lr = 0.5, model = { hidden = 8 } }\n"
    "for step in run:steps(function() return true end, 3) do log.step { loss = 1 / (step + 1) } "
    "end\n"
    "log.record('validation', { loss = 0.25 })\n";

TEST(RunFolder, HoldsTheResolvedConfigurationAndAnObjectForEachStep) {
  const Folder folder;
  folder.Write("train.lua", kLoggingScript);

  const Ended ended = RunOne(Lockstep(
      folder, {"--nproc", "2", "--run-dir", "out/first", "train.lua", "--set", "model.hidden=16"}));

  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(
      folder.List("out/first"),
      ElementsAre("config.json", StartsWith("events.out.tfevents."), "metrics.jsonl", "run.lock"));
  EXPECT_THAT(folder.Read("out/first/config.json"),
              AllOf(HasSubstr("\"lr\": 0.5"), HasSubstr("\"hidden\": 16")));
  const Metrics metrics = ReadMetrics(folder, "out/first/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 4U);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(metrics[static_cast<size_t>(step)].at("step"), absl::StrCat(step));
  }
  EXPECT_EQ(metrics[1].at("loss"), "0.5");
  EXPECT_EQ(metrics[3].at("event"), "validation");
  EXPECT_EQ(metrics[3].at("loss"), "0.25");
}

TEST(RunFolder, IsNamedAfterTheScriptWhereNoneIsGiven) {
  const Folder folder;
  folder.Write("scripts/train.lua", kLoggingScript);

  ASSERT_EQ(RunOne(Lockstep(folder, {"--nproc", "2", "scripts/train.lua"})).exit_code, 0);

  EXPECT_THAT(folder.List("runs"), ElementsAre(MatchesRegex("train-[0-9]+-[0-9]+-[0-9a-f]+")));
}

TEST(RunFolder, IsNotMadeForAScriptThatWritesNothing) {
  const Folder folder;
  folder.Write("train.lua", "print('done')");

  ASSERT_EQ(RunOne(Lockstep(folder, {"--nproc", "2", "train.lua"})).exit_code, 0);

  EXPECT_THAT(folder.List(), ElementsAre("train.lua"));
}

TEST(RunFolder, IsSharedByNoTwoRunsThatStartTogether) {
  const Folder folder;
  folder.Write("train.lua", kLoggingScript);
  std::vector<Child> runs;
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) {
    runs.emplace_back(Lockstep(folder, {"--nproc", "1", "train.lua"}));
    names.push_back(absl::StrCat("run ", i));
  }

  WaitForAll(runs, names);

  EXPECT_EQ(folder.List("runs").size(), 4U);
}

TEST(RunFolder, CreationErrorsNameTheFolder) {
  const Folder folder;
  folder.Write("train.lua", kLoggingScript);
  folder.Write("taken", "a file");

  const Ended ended =
      RunOne(Lockstep(folder, {"--nproc", "2", "--run-dir", "taken/below", "train.lua"}));

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "cannot make the folder");
  EXPECT_THAT(ended.err, HasSubstr("taken/below"));
}

}  // namespace
}  // namespace lockstep::tests
