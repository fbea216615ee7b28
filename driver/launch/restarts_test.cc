#include "driver/launch/restarts.h"

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;

constexpr int kKilled = 128 + SIGKILL;

Attempt FailedAt(std::optional<int64_t> step, int exit_code = kKilled) {
  Attempt attempt;
  attempt.exit_code = exit_code;
  attempt.has_failed = true;
  attempt.step = step;
  return attempt;
}

TEST(Restarts, HeaderExample) {
  Restarts restarts(10);

  const Restarts::Decision decision = restarts.After(FailedAt(7));

  EXPECT_TRUE(decision.starts_again);
  EXPECT_EQ(decision.text, "lockstep: the run failed in step 7; restart 1 of 10");
  EXPECT_EQ(restarts.count(), 1);
}

TEST(Restarts, EndWhenTheRunEndsWellOrIsAskedTo) {
  Restarts restarts(10);
  for (const int code : {0, 128 + SIGINT, 128 + SIGTERM}) {
    Attempt attempt;
    attempt.exit_code = code;
    EXPECT_FALSE(restarts.After(attempt).starts_again);
    EXPECT_EQ(restarts.After(attempt).text, "");
  }
  EXPECT_EQ(restarts.count(), 0);
}

TEST(Restarts, EndAtExitCodesThatSaySo) {
  for (const int code : {kUsageError, 128 + SIGINT, 128 + SIGTERM}) {
    Restarts restarts(10);
    const Restarts::Decision decision = restarts.After(FailedAt(1, code));
    EXPECT_FALSE(decision.starts_again) << code;
    EXPECT_THAT(decision.text, HasSubstr("does not start again: exit code "));
  }
  for (const int code : {1, 3, 4, 128 + SIGSEGV, kKilled}) {
    EXPECT_TRUE(Restarts(1).After(FailedAt(1, code)).starts_again) << code;
  }
}

TEST(Restarts, EndAfterTheirNumber) {
  Restarts none(0);
  EXPECT_FALSE(none.After(FailedAt(1)).starts_again);
  EXPECT_EQ(none.After(FailedAt(1)).text, "");  // as without --restarts

  Restarts two(2);
  EXPECT_TRUE(two.After(FailedAt(1)).starts_again);
  EXPECT_TRUE(two.After(FailedAt(2)).starts_again);
  const Restarts::Decision last = two.After(FailedAt(3));
  EXPECT_FALSE(last.starts_again);
  EXPECT_EQ(last.text,
            "lockstep: gives up: the run has failed in step 3, after all 2 restarts of --restarts");
  EXPECT_EQ(two.count(), 2);
}

TEST(Restarts, EndAtTheThirdFailureInARowAtAStep) {
  const std::optional<int64_t> start;
  const struct {
    std::vector<std::optional<int64_t>> steps;
    bool starts_again;  // after the last of them
  } kCases[] = {
      {{5, 5, 5}, false},      {{4, 5, 5, 5}, false},      {{start, start, start}, false},
      {{5, 5, 6, 5, 5}, true}, {{5, 6, 5, 6, 5, 6}, true}, {{start, start, 0, 0}, true},
      {{0, start, 0}, true},
  };
  for (const auto& c : kCases) {
    Restarts restarts(100);
    Restarts::Decision decision;
    for (size_t i = 0; i < c.steps.size(); ++i) {
      EXPECT_TRUE(i == 0 || decision.starts_again);
      decision = restarts.After(FailedAt(c.steps[i]));
    }
    EXPECT_EQ(decision.starts_again, c.starts_again);
    EXPECT_THAT(decision.text, HasSubstr(c.starts_again ? "restart" : "three times in a row "));
  }
}

TEST(Restarts, ARecordIsALineOfJsonWhateverTheCauseHolds) {
  Attempt attempt = FailedAt(5);
  attempt.cause = "rank 1: train.lua:7: \"x\"\t\xff";
  EXPECT_EQ(RestartRecord(2, attempt),
            "{\"event\":\"restart\",\"restarts\":2,\"exit_code\":137,\"step\":5,\"cause\":"
            "\"rank 1: train.lua:7: \\\"x\\\"\\t\xEF\xBF\xBD\"}\n");
  EXPECT_EQ(RestartRecord(1, FailedAt(std::nullopt)),
            "{\"event\":\"restart\",\"restarts\":1,\"exit_code\":137,\"cause\":\"\"}\n");
}

}  // namespace
}  // namespace lockstep::driver
