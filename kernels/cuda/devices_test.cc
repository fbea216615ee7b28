#include "kernels/cuda/devices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Devices, EachCapabilityHasItsImages) {
  const struct {
    Capability capability;
    Images images;
  } kCases[] = {
      {{6, 1}, Images::kNone},     {{7, 0}, Images::kNone}, {{7, 5}, Images::kNone},  // T4, RTX 20
      {{8, 0}, Images::kCompiled},                                                    // A100
      {{8, 6}, Images::kCompiled},  // RTX 30, by 8.0
      {{8, 7}, Images::kCompiled},  // Orin, by 8.0
      {{8, 9}, Images::kCompiled},  // L40S, RTX 40
      {{9, 0}, Images::kCompiled},  // H100, H200
      {{10, 0}, Images::kPtx},      // B200
      {{10, 3}, Images::kPtx},     {{11, 0}, Images::kPtx}, {{12, 0}, Images::kPtx},  // RTX 50
      {{12, 1}, Images::kPtx},     {{13, 0}, Images::kPtx},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(ImagesFor(one.capability), one.images)
        << one.capability.major << "." << one.capability.minor;
  }
}

TEST(Devices, ALineSaysWhatAnUnknownGpuWillUse) {
  EXPECT_EQ(KernelsLine("H100", {9, 0}), "");
  EXPECT_EQ(KernelsLine("B200", {10, 0}),
            "GPU: B200, compute capability 10.0: the driver compiles Lockstep's kernels when they "
            "first run");
  EXPECT_THAT(KernelsLine("Tesla T4", {7, 5}),
              AllOf(HasSubstr("Tesla T4, compute capability 7.5"),
                    HasSubstr("need 8.0; operators of ATen run instead")));
}

}  // namespace
}  // namespace lockstep::kernels
