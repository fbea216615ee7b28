// A run that gets SIGTERM within a step saves after it, whatever the rest of the step does.

#include <signal.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/rank_script.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::SizeIs;

// An error that the loop's body catches does not leave the loop: the recomputation of a
// checkpointed region ends with one.
TEST(AskedToEndWithinAStep, ErrorsThatAreCaughtDoNotKeepARunFromSaving) {
  const struct {
    const char* how;
    std::string step;
  } kCases[] = {
      {"a recomputation that stops early",
       "local x = torch.ones({ 4 }):requires_grad_(true)\n"
       "require('lockstep.checkpoint').new()(function(h) return torch.tanh(torch.exp(h)) end, x)\n"
       "  :sum():backward()\n"},
      {"an error in an operator", "pcall(torch.zeros, -1)\n"},
      {"a message handler in Lua",
       "xpcall(function() error('x') end, function(m)\nlocal n = m\nreturn n end)\n"},
      {"an error in a coroutine", "pcall(coroutine.wrap(function() error('x') end))\n"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.how);
    const Folder folder;
    Child run(RankScript(
        folder,
        absl::StrCat("local run = require 'lockstep.run'\n"
                     "run:state { best = {} }\n"
                     "for _ in run:steps(function() return true end, 3) do\n",
                     kSayPid, "repeat until require('lockstep.core.state').sigterm_came()\n",
                     c.step, "end\n"),
        {"--nproc", "1", "--run-dir", "out"}));
    PidsOf(run, 1);

    run.Send(SIGTERM);
    const Ended ended = run.Wait();

    EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
    ExpectOneComplaint(ended, "lockstep: SIGTERM: the state after 1 steps is in ");
    EXPECT_THAT(folder.List("out/state"), SizeIs(1));
  }
}

}  // namespace
}  // namespace lockstep::tests
