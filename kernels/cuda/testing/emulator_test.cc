// The emulator finds each mistake of mistakes.cc, and nothing in the kernels without one.

#include "kernels/cuda/testing/emulator.h"

#include <cstdint>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/testing/mistakes.h"

namespace lockstep::kernels::emulator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Numbers {
  Memory<float> x, y;

  explicit Numbers(int64_t offset = 0)
      : x("x", {.numbers = 64, .offset = offset}), y("y", {.numbers = 64, .offset = offset}) {
    x.Fill([](int64_t i) { return i; });
  }
};

using Kernel = void(int, const float*, float*);

TEST(Emulator, KernelsWithoutAMistakeRun) {
  Numbers reversed, copied, summed, warps;
  RunReverse(0, reversed.x.input(), reversed.y.output());
  RunCopy(0, copied.x.input(), copied.y.output());
  RunSum(0, summed.x.input(), summed.y.output());
  RunWarpReverse(0, warps.x.input(), warps.y.output());

  EXPECT_THAT(TakeFaults(), IsEmpty());
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(reversed.y[i], 63 - i);
    EXPECT_EQ(copied.y[i], i);
    EXPECT_EQ(summed.y[i], i < 32 ? 496 : 1520);
    EXPECT_EQ(warps.y[i], i ^ 31);
  }
  EXPECT_EQ(copied.y.bytes().num_unwritten(), 0);
}

TEST(Emulator, FindsEachMistake) {
  const struct {
    Kernel* kernel;
    int mistake;
    const char* fault;
  } kCases[] = {
      {RunReverse, 1, "4-byte load of shared memory, which nobody wrote"},
      {RunReverse, 1, "store of shared memory, which another thread reads, without a barrier"},
      {RunReverse, 2, "thread (56, 0): 4-byte load of shared memory, which nobody wrote"},
      {RunReverse, 3, "thread (0, 0): index 64 is beyond the array"},
      {RunReverse, 4, "thread (63, 0): 4-byte load of x at byte 256 of 256"},
      {RunReverse, 5, "63 of 64 threads wait at a barrier, and 1 have ended"},
      {RunReverse, 6, "store of shared memory, which another thread reads, without a barrier"},
      {RunCopy, 1, "16-byte store of x at byte 0, which is an input"},
      {RunCopy, 1, "16-byte load of y at byte 0, which nobody wrote"},
      {RunCopy, 2, "thread (1, 0): 16-byte store of y at byte 0, which another thread writes too"},
      {RunCopy, 3, "thread (15, 0): 16-byte store of y at byte 256 of 256"},
      {RunSum, 1, "31 threads wait for ever"},
      {RunSum, 2, "a lane shuffles with one that its mask does not name"},
      {RunSum, 3, "a lane shuffles with one that its mask does not name"},
      {RunWarpReverse, 1, "store of shared memory, which another thread reads"},
      {RunWarpReverse, 2, "its mask does not name the lane"},
      {RunWarpReverse, 3, "which another thread reads, without a barrier"},
  };
  for (const auto& one : kCases) {
    Numbers numbers;
    one.kernel(one.mistake, numbers.x.input(), numbers.y.output());

    EXPECT_THAT(TakeFaults(), Contains(HasSubstr(one.fault))) << one.fault;
  }
}

TEST(Emulator, FindsMisalignedAccesses) {
  Numbers numbers(/*offset=*/1);
  RunCopy(0, numbers.x.input(), numbers.y.output());

  EXPECT_THAT(TakeFaults(), Contains(AllOf(HasSubstr("thread (0, 0)"), HasSubstr("aligned"))));
}

TEST(Emulator, FindsARaceOfTwoBlocks) {
  for (const int mistake : {0, 1}) {
    Numbers numbers;
    Memory<uint32_t> amax("amax", {.numbers = 1});
    amax.Fill([](int64_t) { return 0; });
    RunAmax(mistake, numbers.x.input(), amax.in_out());

    const auto faults = TakeFaults();
    if (mistake == 0) {
      EXPECT_THAT(faults, IsEmpty());
      float most;
      memcpy(&most, &amax[0], sizeof(most));
      EXPECT_EQ(most, 63);
    } else {
      EXPECT_THAT(faults, Contains(HasSubstr("block (1, 0), thread (0, 0): 4-byte load of amax")));
    }
  }
}

TEST(Emulator, FindsPointersToMemoryOfTheCpu) {
  Numbers numbers;
  float on_cpu[64] = {};
  RunReverse(0, on_cpu, numbers.y.output());

  EXPECT_THAT(TakeFaults(), Contains(HasSubstr("4-byte load of memory of the CPU")));
}

TEST(Emulator, FindsAccessesBetweenRows) {
  Numbers numbers;
  numbers.x.ForbidGaps(/*columns=*/6, /*stride=*/8);
  RunCopy(0, numbers.x.input(), numbers.y.output());

  EXPECT_THAT(TakeFaults(), Contains(HasSubstr("x at byte 16, which lies between the rows")));
}

TEST(Emulator, FindsALaunchThatIsTooLarge) {
  for (const Geometry& geometry :
       {Geometry{.threads_x = 1024}, Geometry{.blocks_x = 0}, Geometry{.blocks_y = 65536}}) {
    RunGrid(
        geometry, [](void*) {}, nullptr, 0);

    EXPECT_THAT(TakeFaults(), ElementsAre(HasSubstr("exceeds a GPU's limits")));
  }
}

TEST(Emulator, CountsAccesses) {
  ResetCounts();
  Numbers numbers;
  RunCopy(0, numbers.x.input(), numbers.y.output());

  EXPECT_EQ(CountsSoFar().loads, 16);
  EXPECT_EQ(CountsSoFar().stored_bytes, 256);
  EXPECT_EQ(CountsSoFar().narrow, 0);
  RunReverse(0, numbers.x.input(), numbers.y.output());
  EXPECT_EQ(CountsSoFar().narrow, 128);
  EXPECT_EQ(CountsSoFar().barriers, 1);
  TakeFaults();
}

}  // namespace
}  // namespace lockstep::kernels::emulator
