#include "kernels/cuda/devices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Devices, EachCapabilityHasItsImages) {
  const Compiled by_cuda_13 = {{80, 86, 89, 90, 100, 120}, 90};
  const Compiled by_cuda_12 = {{80, 86, 89, 90}, 90};  // before 12.8
  constexpr Images kNone = Images::kNone, kPtx = Images::kPtx, kCompiled = Images::kCompiled;
  const struct {
    Capability capability;
    Images by_cuda_13, by_cuda_12;
  } kCases[] = {
      {{6, 1}, kNone, kNone},         {{7, 0}, kNone, kNone}, {{7, 5}, kNone, kNone},  // T4, RTX 20
      {{8, 0}, kCompiled, kCompiled},                                                  // A100
      {{8, 6}, kCompiled, kCompiled},                                                  // RTX 30
      {{8, 7}, kCompiled, kCompiled},  // Orin, by 8.6
      {{8, 9}, kCompiled, kCompiled},  // L40S, RTX 40
      {{9, 0}, kCompiled, kCompiled},  // H100, H200
      {{10, 0}, kCompiled, kPtx},      // B200
      {{10, 3}, kCompiled, kPtx},      // B300, by 10.0
      {{11, 0}, kPtx, kPtx},           // Thor
      {{12, 0}, kCompiled, kPtx},      // RTX 50
      {{12, 1}, kCompiled, kPtx},      // GB10, by 12.0
      {{13, 0}, kPtx, kPtx},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(testing::Message() << one.capability.major << "." << one.capability.minor);
    EXPECT_EQ(ImagesFor(one.capability, by_cuda_13), one.by_cuda_13);
    EXPECT_EQ(ImagesFor(one.capability, by_cuda_12), one.by_cuda_12);
  }
  EXPECT_EQ(ImagesFor({9, 0}), kCompiled) << "with every nvcc";
}

TEST(Devices, ALineSaysWhatAnUnknownGpuWillUse) {
  EXPECT_EQ(KernelsLine("H100", {9, 0}), "");
  EXPECT_EQ(KernelsLine("Next", {13, 0}),
            "GPU: Next, compute capability 13.0: the driver compiles Lockstep's kernels when they "
            "first run");
  EXPECT_THAT(KernelsLine("Tesla T4", {7, 5}),
              AllOf(HasSubstr("Tesla T4, compute capability 7.5"),
                    HasSubstr("need 8.0; operators of ATen run instead")));
}

}  // namespace
}  // namespace lockstep::kernels
