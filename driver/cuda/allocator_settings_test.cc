#include "driver/cuda/allocator_settings.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "c10/util/env.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

constexpr char kName[] = "PYTORCH_ALLOC_CONF";
constexpr char kOldName[] = "PYTORCH_CUDA_ALLOC_CONF";

class AllocatorSettings : public ::testing::Test {
 protected:
  AllocatorSettings() {
    unsetenv(kName);
    unsetenv(kOldName);
  }
};

TEST_F(AllocatorSettings, ExpandableSegmentsAreTheDefault) {
  SetAllocatorDefaults();
  EXPECT_EQ(c10::utils::get_env(kName), "expandable_segments:True");
}

TEST_F(AllocatorSettings, TheUsersOwnWinByEitherName) {
  for (const char* value : {"", "max_split_size_mb:128", "expandable_segments:False"}) {
    setenv(kName, value, 1);
    SetAllocatorDefaults();
    EXPECT_EQ(c10::utils::get_env(kName), value);

    unsetenv(kName);
    setenv(kOldName, value, 1);
    SetAllocatorDefaults();
    EXPECT_EQ(c10::utils::get_env(kName), std::nullopt);
    unsetenv(kOldName);
  }
}

}  // namespace
}  // namespace lockstep::driver
