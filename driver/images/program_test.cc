#include "driver/images/program.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::images {
namespace {

using ::testing::HasSubstr;

TEST(ProgramTest, OutputErrorsAndStatusArrive) {
  const absl::StatusOr<ProgramOutput> output =
      RunProgram({"sh", "-c", "printf out; printf err >&2; exit 3"}, 100);

  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->out, "out");
  EXPECT_EQ(output->err, "err");
  EXPECT_EQ(output->code, 3);
}

TEST(ProgramTest, ArgumentsMeanThemselves) {
  const absl::StatusOr<ProgramOutput> output =
      RunProgram({"printf", "%s|", "a b", "$HOME", "'\";`id`", ""}, 100);

  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->out, "a b|$HOME|'\";`id`||");
}

TEST(ProgramTest, ZeroBytesAndMuchOutputPassUnchanged) {
  const absl::StatusOr<ProgramOutput> output = RunProgram(
      {"sh", "-c", "head -c 3000000 /dev/zero; head -c 300000 /dev/zero >&2"}, 3'000'000);

  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->out, std::string(3'000'000, '\0'));
  EXPECT_EQ(output->err.size(), 16 << 10);
  EXPECT_EQ(output->code, 0);
}

TEST(ProgramTest, AProgramThatWritesTooMuchIsEnded) {
  const absl::StatusOr<ProgramOutput> output = RunProgram({"cat", "/dev/zero"}, 1000);

  EXPECT_EQ(output.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(output.status().message(), HasSubstr("\"cat\" wrote more than 1000 bytes"));
}

TEST(ProgramTest, InputIsEmptyAndASignalIsAStatus) {
  EXPECT_EQ(RunProgram({"cat"}, 10)->out, "");
  EXPECT_EQ(RunProgram({"sh", "-c", "kill -TERM $$"}, 10)->code, 128 + 15);
}

TEST(ProgramTest, WhatCannotRunIsNamed) {
  EXPECT_EQ(RunProgram({"no-such-program"}, 10).status(),
            absl::NotFoundError("\"no-such-program\" is not installed"));
  EXPECT_EQ(RunProgram({}, 10).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RunProgram({"printf", std::string("a\0b", 3)}, 10).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(RunProgram({"/etc/passwd"}, 10).status().message(), HasSubstr("cannot be started"));
}

}  // namespace
}  // namespace lockstep::images
