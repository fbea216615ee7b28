// The program on one and two ranks: what a mistake shows.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Ended RunScript(const std::string& code, const std::vector<std::string>& arguments) {
  const Folder folder;
  folder.Write("train.lua", code);
  std::vector<std::string> all = {"train.lua"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunOne(Lockstep(folder, all));
}

// --- Mistakes in a script ------------------------------------------------------------------------

struct BadScript {
  const char* name;
  const char* code;
  const char* line;     // where the script is wrong
  const char* message;  // what is wrong
};

class MistakeInAScript : public ::testing::TestWithParam<BadScript> {};

TEST_P(MistakeInAScript, IsReportedOnceWithItsLine) {
  for (const char* nproc : {"1", "2"}) {
    SCOPED_TRACE(absl::StrCat("--nproc ", nproc));

    const Ended ended = RunScript(GetParam().code, {"--nproc", nproc});

    EXPECT_EQ(ended.exit_code, 1);
    ExpectOneComplaint(ended, GetParam().message);
    EXPECT_THAT(ended.err, HasSubstr(GetParam().line));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MistakeInAScript,
    ::testing::Values(
        BadScript{"SyntaxError", "\nlocal x = = 3", "train.lua:2:", "unexpected symbol near '='"},
        BadScript{"UnfinishedBlock", "if true then\n", "train.lua:2:", "'end' expected"},
        BadScript{"CallOfNil", "\n\nfrobnicate()",
                  "train.lua:3:", "attempt to call global 'frobnicate' (a nil value)"},
        BadScript{
            "MisspeltField",
            "local nn = require 'lockstep.nn'\n\nlocal net = nn.Sequental(\n  nn.Linear(2, 3))",
            "train.lua:3:",
            "attempt to call field 'Sequental' (a nil value); did you mean \"nn.Sequential\"?"},
        BadScript{"WrongShapes",
                  "local torch = require 'lockstep.torch'\n"
                  "torch.matmul(torch.ones({2, 3}), torch.ones({2, 3}))",
                  "train.lua:2:", "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"},
        BadScript{
            "WrongOperatorArguments",
            "local torch = require 'lockstep.torch'\ntorch.sum(torch.ones({2}), {dims = {0}})",
            "train.lua:2:", "did you mean \"dim\"?"},
        BadScript{"UnknownOperator", "local torch = require 'lockstep.torch'\ntorch.matmull(1, 2)",
                  "train.lua:2:", "matmull"},
        BadScript{"ErrorWithATable", "error({code = 3})",
                  "train.lua:1:", "error value of type table"},
        BadScript{"ErrorWithATableThatHasAText",
                  "error(setmetatable({}, {__tostring = function() return 'a text' end}))",
                  "train.lua:1:", "lockstep: "},
        BadScript{"ErrorWithATableWhoseTextFails",
                  "error(setmetatable({}, {__tostring = function() error('inner') end}))",
                  "train.lua:1:",
                  "error value of type table, not a message, and its __tostring fails: "
                  "train.lua:1: inner"},
        BadScript{"ErrorWithATableWhoseTextIsNone",
                  "error(setmetatable({}, {__tostring = function() return {} end}))",
                  "train.lua:1:", "error value of type table, not a message"},
        BadScript{"ErrorWithAZeroByte", "error('before\\0after')",
                  "train.lua:1:", "before\\0after"},
        BadScript{"ErrorOfTheLibrarysWithAZeroByte",
                  "local run = require 'lockstep.run'\n"
                  "run:state { best = {} }\n"
                  "run:resume { without = { 'a\\0b' } }",
                  "train.lua:3:", "\"a\\0b\", which is not registered"},
        BadScript{"ErrorWithNothing", "\nerror()", "train.lua:2:", "error value of type nil"},
        BadScript{"ErrorWithAnEmptyText", "\nerror('')", "train.lua:2:", "lockstep: "},
        BadScript{"MissingModule", "\nrequire 'no_such_module'",
                  "train.lua:2:", "module 'no_such_module' not found"},
        BadScript{"MisspeltModule", "require 'lockstep.optm'",
                  "train.lua:1:", "; did you mean \"lockstep.optim\"?"},
        BadScript{"EndlessRecursion",
                  "jit.off() local function f(x) local y = f(x) return y end\nf(1)",
                  "train.lua:1:", "stack overflow"},
        BadScript{"ErrorInACoroutine",
                  "local co = coroutine.wrap(function()\n  error('inside')\nend)\nco()",
                  "train.lua:2:", "inside"}),
    [](const auto& info) { return info.param.name; });

TEST(Script, AMistakeInAModuleOfItsFolderShowsTheModulesLine) {
  const Folder folder;
  folder.Write("train.lua", "require 'helper'");
  folder.Write("helper.lua", "\nlocal x = nil + 1");

  const Ended ended = RunOne(Lockstep(folder, {"--nproc", "2", "train.lua"}));

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "attempt to perform arithmetic on a nil value");
  EXPECT_THAT(ended.err, HasSubstr("helper.lua:2:"));
}

// The folder where a user stands may be a model that was downloaded.
TEST(Script, LoadsNoModuleFromTheFolderWhereItIsStarted) {
  const Folder scripts;
  const Folder model;
  scripts.Write("train.lua", "print(pcall(require, 'cjson'))\nprint(pcall(require, 'hostile'))");
  model.Write("cjson.so", "not a library");
  model.Write("hostile.lua", "print 'code of the model ran'");
  Command command = Lockstep(model, {"--nproc", "1", scripts.Path("train.lua")});
  // An empty template of LuaJIT's is its default, "./?.so" among others.
  for (const char* templates : {"", ";;", "./?.so;?.so", "/nowhere/?.so;./?.so"}) {
    SCOPED_TRACE(templates);
    command.environment = {{"LUA_PATH", "./?.lua"}, {"LUA_CPATH", templates}};

    const Ended ended = RunOne(command);

    EXPECT_THAT(ended.out, HasSubstr("module 'cjson' not found")) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("module 'hostile' not found"));
  }
}

TEST(Script, ATracebackHasTheScriptsFramesAlone) {
  const Folder folder;
  folder.Write("train.lua",
               "local optim = require 'lockstep.optim'\n"
               "local function make(options)\n"
               "  local optimizer = optim.AdamW({}, options)\n"
               "  return optimizer\n"
               "end\n"
               "local optimizer = make { lrr = 3 }\n");

  const Ended ended = RunOne(Lockstep(folder, {"--nproc", "1", "train.lua"}));

  EXPECT_EQ(ended.err,
            "lockstep: train.lua:3: optim.AdamW: unknown option \"lrr\"; did you mean \"lr\"? "
            "(known: betas, eps, lr, master, states, weight_decay)\n"
            "stack traceback:\n"
            "\ttrain.lua:3: in function 'make'\n"
            "\ttrain.lua:6: in main chunk\n");
}

TEST(Script, AnErrorOfItsMainChunkIsOneLine) {
  const Folder folder;
  folder.Write("train.lua", "\nrequire('lockstep.torch').matmull(1)");

  const Ended ended = RunOne(Lockstep(folder, {"--nproc", "1", "train.lua"}));

  EXPECT_EQ(ended.err,
            "lockstep: train.lua:2: torch has no operator \"matmull\"; did you mean \"matmul\"?\n");
}

TEST(Script, AnErrorOnOneRankNamesTheRank) {
  const Ended ended = RunScript(
      "local dist = require 'lockstep.distributed'\n"
      "if dist.rank() == 1 then error('only here') end\n"
      "dist.barrier()",
      {"--nproc", "2"});

  EXPECT_EQ(ended.exit_code, 1);
  ExpectOneComplaint(ended, "lockstep: rank 1: train.lua:2: only here");
}

TEST(Script, OsExitGivesTheRunItsCode) {
  const Ended alone = RunScript("os.exit(3)", {"--nproc", "1"});
  const Ended together = RunScript("\nos.exit(3)", {"--nproc", "2"});

  EXPECT_EQ(alone.exit_code, 3);
  EXPECT_EQ(alone.err, "");
  EXPECT_EQ(together.exit_code, 3);
  EXPECT_THAT(together.err,
              MatchesRegex("lockstep: rank [01] called os.exit\\(3\\) at train.lua:2\n"));
}

TEST(Script, OsExitWithoutACodeIsAGoodEnd) {
  for (const char* call : {"os.exit()", "os.exit(0)", "os.exit(true)"}) {
    for (const char* nproc : {"1", "2"}) {
      const Ended ended = RunScript(call, {"--nproc", nproc});

      EXPECT_EQ(ended.exit_code, 0) << call;
      EXPECT_EQ(ended.err, "") << call;
    }
  }
}

TEST(Script, HooksThatAreThereAtTheEndEndWell) {
  const Ended ended = RunScript(
      "local torch = require 'lockstep.torch'\n"
      "x = torch.ones { 2 }:requires_grad_(true)\n"
      "x:register_hook(function(gradient) return gradient end)\n"
      "y = x * 2\n"
      "y:register_hook(function(gradient) return gradient end)\n"
      "z = y:sum()",
      {"--nproc", "1"});

  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.err, "");
}

// The ranks that end first must not break the connections that the others still make.
TEST(Script, ManyRanksThatEndAtOnceEndWell) {
  for (int i = 0; i < 5; ++i) {
    const Ended ended = RunScript("os.exit()", {"--nproc", "8"});

    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_EQ(ended.err, "");
  }
}

TEST(Script, AWarningOfLibtorchIsALineWithoutItsSources) {
  const Ended ended = RunScript(
      "local torch = require 'lockstep.torch'\n"
      "torch.cross(torch.ones({2, 3}), torch.ones({2, 3}))",
      {"--nproc", "1"});

  EXPECT_EQ(ended.exit_code, 0);
  ExpectOneComplaint(ended, "lockstep: warning: Using torch.cross without specifying the dim arg");
}

// --- Mistakes on the command line ----------------------------------------------------------------

struct BadCommandLine {
  std::vector<std::string> arguments;
  const char* message;
};

TEST(CommandLine, MistakesEndWithCode2AndSayWhatWasExpected) {
  const BadCommandLine kCases[] = {
      {{"--nproc", "0", "train.lua"},
       "--nproc takes a whole number of ranks from 1 to 1024, not \"0\""},
      {{"--nproc", "abc", "train.lua"},
       "--nproc takes a whole number of ranks from 1 to 1024, not \"abc\""},
      {{"train.lua", "--nprc", "2"}, "unknown option \"--nprc\" (did you mean \"--nproc\"?)"},
      {{"missing.lua"}, "cannot run \"missing.lua\": there is no such file"},
      {{"a_folder"}, "cannot run \"a_folder\": it is a folder"},
      {{"train.lua", "--set", "lr"}, "--set takes key=value, not \"lr\""},
      {{"--nproc", "2"}, "an interactive session has one rank"},
      {{"--nproc", "2", "/dev/stdin"}, "cannot run \"/dev/stdin\": it is not a regular file"},
  };
  const Folder folder;
  folder.Write("train.lua", "print('it ran')");
  folder.Write("a_folder/file", "");
  for (const BadCommandLine& c : kCases) {
    const Ended ended = RunOne(Lockstep(folder, c.arguments));

    EXPECT_EQ(ended.exit_code, 2) << c.message;
    EXPECT_EQ(ended.out, "");
    ExpectOneComplaint(ended, c.message);
  }
}

TEST(CommandLine, HelpShowsTheOptionsAndRunsNothing) {
  const Ended ended = RunScript("error('it ran')", {"--help"});

  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.err, "");
  for (const char* option : {"--nproc", "--set", "--run-dir", "--timeout"}) {
    EXPECT_THAT(ended.out, HasSubstr(option));
  }
}

TEST(CommandLine, TheVersionIsThatOfTheLuaLibraryAndNamesTorchAndRunsNothing) {
  const Ended asked = RunScript("error('it ran')", {"--version"});
  const Ended in_lua =
      RunScript("print('lockstep ' .. require('lockstep').version)", {"--nproc", "1"});

  EXPECT_EQ(asked.exit_code, 0);
  EXPECT_THAT(asked.out, MatchesRegex("lockstep [0-9]+\\.[0-9]+\\.[0-9]+ \\(built for torch "
                                      "[0-9.]+, runs with torch [0-9.]+\\)\n"));
  EXPECT_EQ(absl::StripSuffix(in_lua.out, "\n"), asked.out.substr(0, asked.out.find(" (")));
}

TEST(CommandLine, AScriptOnAPipeRunsOnOneRank) {
  Command command = Lockstep(Folder(), {"--nproc", "1", "/dev/stdin"});
  command.input = "print('from a pipe')";

  EXPECT_EQ(RunOne(command).out, "from a pipe\n");
}

TEST(CommandLine, TheRemainingArgumentsAreTheScripts) {
  const Ended ended = RunScript("print(table.concat(require('lockstep.run').args, '|'))",
                                {"--nproc", "1", "first", "", "--", "--nproc", "a b"});

  EXPECT_EQ(ended.out, "first||--nproc|a b\n");
}

// --- Streams -------------------------------------------------------------------------------------

// Otherwise the next descriptor would get a closed one's number, and the output would go there.
TEST(Streams, ClosedOnesDoNoHarm) {
  const Folder folder;
  folder.Write("train.lua",
               "local dist, torch = require 'lockstep.distributed', require 'lockstep.torch'\n"
               "for i = 1, 100 do print('nobody reads this') io.stderr:write('nor this\\n') end\n"
               "local sum = dist.all_reduce(torch.ones({1})):item()\n"
               "if dist.rank() == 0 then local file = io.open('sum', 'w') file:write(sum) "
               "file:close() end\n");
  for (const char* nproc : {"1", "2"}) {
    const Command program = Lockstep(folder, {"--nproc", nproc, "train.lua"});
    Command command = {.argv = {"/bin/sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"},
                       .folder = folder.path()};
    command.argv.insert(command.argv.end(), program.argv.begin(), program.argv.end());

    const Ended ended = RunOne(command);

    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_EQ(folder.Read("sum"), nproc);
  }
}

}  // namespace
}  // namespace lockstep::tests
