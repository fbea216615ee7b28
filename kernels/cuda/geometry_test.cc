// The geometry of each kernel against the limits of each compute capability, for the sizes of the
// supported families: hidden states of 64 to 16,384 numbers, heads of 64 to 256.

#include "kernels/cuda/geometry.h"

#include <bit>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::kernels {
namespace {

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
struct Device {
  int capability;
  int threads_of_multiprocessor, blocks_of_multiprocessor;
  int shared_kib;  // of a multiprocessor
};
constexpr Device kDevices[] = {
    {75, 1024, 16, 64},  {80, 2048, 32, 164},  {86, 1536, 16, 100},  {89, 1536, 24, 100},
    {90, 2048, 32, 228}, {100, 2048, 32, 228}, {120, 1536, 24, 100},
};
// The same for all of them. A kernel's static shared memory may have 48 KiB.
constexpr int kRegisters = 65536, kThreadsOfBlock = 1024, kSharedBytes = 48 << 10;

// Bytes of shared memory of a block, as the kernels declare it. Acc is float64 at the most.
constexpr int64_t kSharedOfTotal = 2 * kMostThreads / kWarp * sizeof(double);
constexpr int64_t kSharedOfLosses = 2 * kSharedOfTotal;  // of maxima, and of sums
constexpr int64_t kSharedOfGradient = kThreads * kPackSize * sizeof(double);
constexpr int64_t kSharedOfColumns = kAmaxThreadsY * kAmaxColumns * sizeof(uint32_t);
constexpr int64_t kSharedOfTile = kTile * (kTile + 4);

std::vector<int64_t> Sizes() {
  std::vector<int64_t> sizes = {1, 7, 80, 96, 192, 576, 896, 1536, 2560, 3584, 5120, 7168, 12288};
  for (int64_t size = 64; size <= 16384; size *= 2)
    sizes.insert(sizes.end(), {size - 1, size, size + 1});
  return sizes;
}

void ExpectRuns(const Geometry& geometry, int64_t shared_bytes) {
  const int threads = geometry.threads_x * geometry.threads_y;
  EXPECT_GE(geometry.blocks_x, 1);
  EXPECT_LE(geometry.blocks_x, kMostBlocks);
  EXPECT_GE(geometry.blocks_y, 1);
  EXPECT_LE(geometry.blocks_y, kMostBlocksY);
  EXPECT_EQ(threads % kWarp, 0) << "shuffles name all lanes";
  EXPECT_LE(threads, kMostThreads) << "the launch bound";
  EXPECT_LE(threads, kThreadsOfBlock);
  EXPECT_LE(shared_bytes, kSharedBytes);
  EXPECT_GE(kRegisters / kMostThreads, 128);
  for (const Device& device : kDevices) {
    EXPECT_EQ(device.threads_of_multiprocessor % threads, 0)
        << "sm_" << device.capability << " leaves threads idle";
    // A block that is small in threads must not be large in memory.
    const int64_t blocks = device.threads_of_multiprocessor / threads;
    EXPECT_LE(std::min<int64_t>(blocks, device.blocks_of_multiprocessor) * shared_bytes,
              int64_t{device.shared_kib} << 10)
        << "sm_" << device.capability;
  }
}

TEST(Geometry, OfRowsRunsOnEveryDevice) {
  for (const int64_t size : Sizes()) {
    SCOPED_TRACE(size);
    const RowShape shape = ShapeOfRow(size);
    for (const int64_t rows : {1, 2, 33, 8192, 131072, 16777216}) {
      ExpectRuns(GeometryOfRows(rows, shape), kSharedOfTotal);
      ExpectRuns(GeometryOfRows(rows, ShapeOfShortRow(size)), 0);
    }
  }
}

TEST(Geometry, CoversEachRowOnce) {
  for (const int64_t size : Sizes()) {
    const RowShape shape = ShapeOfRow(size);
    for (const int64_t rows : {1, 7, 64, 1000}) {
      const Geometry geometry = GeometryOfRows(rows, shape);
      EXPECT_GE(geometry.blocks_x * geometry.threads_y, rows);
      EXPECT_LT((geometry.blocks_x - 1) * geometry.threads_y, rows);
    }
  }
}

// 32 threads of 256 had work before.
TEST(Geometry, NoMoreThanHalfOfTheThreadsOfAHeadAreIdle) {
  for (int64_t size = 64; size <= 256; size += 8) {
    const RowShape shape = ShapeOfRow(size);
    EXPECT_TRUE(shape.in_warp);
    EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(shape.threads)));
    EXPECT_LE(shape.threads, kWarp);
    EXPECT_GT(2 * CeilDiv(size, kPackSize), shape.threads) << size;
    EXPECT_LE(size, shape.threads * kPackSize) << "a pack for each thread";
  }
}

TEST(Geometry, OfGradientsTakesManyShortRows) {
  for (const int64_t size : Sizes()) {
    const RowShape shape = ShapeOfRow(size);
    EXPECT_EQ(RowsOfGradient(size), size <= 1024 ? 16 * kThreads / shape.threads : 16);
    EXPECT_EQ(IsKept(size), size <= 16384) << size;
    ExpectRuns(GeometryOfRows(131072, shape, kRowsAddedUp),
               shape.in_warp ? kSharedOfGradient / 2 : kSharedOfTotal);  // of float32
  }
  // The q and k norms of a layer: 16 heads of 8 x 1,024 tokens.
  EXPECT_EQ(GeometryOfRows(131072, ShapeOfRow(128), kRowsAddedUp).blocks_x, 512);
}

TEST(Geometry, OfCastsRunsOnEveryDevice) {
  for (const int64_t columns : Sizes()) {
    SCOPED_TRACE(columns);
    for (const int64_t rows : {1, 8192, 131072, 4194304}) {
      ExpectRuns(GeometryOfCast(rows, columns, kAmaxBlocks), sizeof(uint32_t) * kWarp);
      ExpectRuns(GeometryOfCast(rows, columns, kMostBlocks), sizeof(uint32_t) * kWarp);
      EXPECT_LE(GeometryOfCast(rows, columns, kAmaxBlocks).blocks_x, kAmaxBlocks);
      ExpectRuns(GeometryOfColumns(rows, columns), kSharedOfColumns);
      ExpectRuns(GeometryOfTiles(rows, columns), kSharedOfTile);
    }
  }
}

TEST(Geometry, OfLossesRunsOnEveryDevice) {
  for (const int64_t vocabulary : {2, 10, 1000, 32000, 50257, 128256, 151936, 262144}) {
    SCOPED_TRACE(vocabulary);
    const RowShape shape = ShapeOfRow(vocabulary);
    if (vocabulary > 1024) {
      EXPECT_EQ(shape.threads, kMostThreads);
    }
    for (const int64_t rows : {1, 1024, 8192, 131072}) {
      ExpectRuns(GeometryOfRows(rows, shape), kSharedOfLosses);
      EXPECT_EQ(GeometryOfRows(rows, shape).blocks_x, CeilDiv(rows, shape.rows));
    }
  }
}

TEST(Geometry, OfNumbersRunsOnEveryDevice) {
  for (const int64_t count : {int64_t{1}, int64_t{4096}, int64_t{4097}, int64_t{1} << 40})
    ExpectRuns(GeometryOfNumbers(count), 0);
  EXPECT_EQ(GeometryOfNumbers(4097).blocks_x, 2);
}

}  // namespace
}  // namespace lockstep::kernels
