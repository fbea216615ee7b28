#include "driver/cuda/cublas_workspace.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;

TEST(CublasWorkspace, HeaderExample) {
  EXPECT_EQ(DeterministicWorkspace(std::nullopt, /*gpu_was_used=*/false).value(), ":4096:8");
}

TEST(CublasWorkspace, ASizeThatRepeatsBitsStays) {
  for (const bool was_used : {false, true}) {
    EXPECT_EQ(DeterministicWorkspace(":4096:8", was_used).value(), ":4096:8");
    EXPECT_EQ(DeterministicWorkspace(":16:8", was_used).value(), ":16:8");
  }
}

TEST(CublasWorkspace, AnotherSizeIsAnError) {
  for (const char* size : {"", ":4096:2:16:8", ":0:0"}) {
    const absl::StatusOr<std::string> result = DeterministicWorkspace(size, false);
    EXPECT_THAT(result.status().message(),
                HasSubstr(std::string("CUBLAS_WORKSPACE_CONFIG is \"") + size + "\""));
    EXPECT_THAT(result.status().message(), HasSubstr("start the run with :4096:8 or :16:8"));
  }
}

TEST(CublasWorkspace, TooLateIsAnErrorThatSaysWhenToCall) {
  const absl::StatusOr<std::string> result = DeterministicWorkspace(std::nullopt, true);

  EXPECT_THAT(result.status().message(), HasSubstr("call it before the first tensor on a GPU"));
  EXPECT_THAT(result.status().message(), HasSubstr("CUBLAS_WORKSPACE_CONFIG=:4096:8"));
}

}  // namespace
}  // namespace lockstep::driver
