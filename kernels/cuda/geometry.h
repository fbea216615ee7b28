// The number of blocks and threads that each kernel for GPUs is launched with. Plain functions of
// sizes: no CUDA here, so that a test calls them on any machine (geometry_test.cc).
//
// No geometry depends on the device, so the bits of a result do not either.

#ifndef LOCKSTEP_KERNELS_CUDA_GEOMETRY_H_
#define LOCKSTEP_KERNELS_CUDA_GEOMETRY_H_

#include <algorithm>
#include <bit>
#include <cstdint>

namespace lockstep::kernels {

inline constexpr int kWarp = 32;
inline constexpr int kThreads = 256;
// The launch bound of all kernels. 65,536 registers leave 128 for each of so many threads.
inline constexpr int kMostThreads = 512;
// Numbers that a thread computes with at a time: DevicePack's kSize, 16 bytes of bfloat16.
inline constexpr int kPackSize = 8;
// Packs of a row whose share of the weight's gradient a thread keeps in registers.
inline constexpr int kPacksKept = 4;

// The most blocks that any GPU takes in each dimension.
inline constexpr int64_t kMostBlocks = 2147483647, kMostBlocksY = 65535;

struct Geometry {
  int64_t blocks_x = 1, blocks_y = 1;
  int threads_x = kThreads, threads_y = 1;
};

constexpr int64_t CeilDiv(int64_t count, int64_t by) { return (count + by - 1) / by; }

// The threads that share one row, and the rows of a block.
struct RowShape {
  bool in_warp;  // all threads of a row are lanes of one warp, so that sums need no barrier
  int threads;
  int rows;
};

// Returns the lanes of a row of up to 1,024 numbers, such as a head's. Each has a pack, or up to
// four.
constexpr RowShape ShapeOfShortRow(int64_t size) {
  const uint64_t packs = std::clamp<uint64_t>(CeilDiv(size, kPackSize), 4, kWarp);
  const int lanes = static_cast<int>(std::bit_ceil(packs));
  return {.in_warp = true, .threads = lanes, .rows = kThreads / lanes};
}

constexpr RowShape ShapeOfRow(int64_t size) {
  if (size <= kWarp * kPackSize * kPacksKept) return ShapeOfShortRow(size);
  // Two packs for each thread, while the launch bound allows it.
  const uint64_t pairs =
      std::clamp<uint64_t>(CeilDiv(size, int64_t{2} * kPackSize), 128, kMostThreads);
  return {.in_warp = false, .threads = static_cast<int>(std::bit_ceil(pairs)), .rows = 1};
}

// Returns the geometry where each block takes `shape.rows` rows, `each` times.
constexpr Geometry GeometryOfRows(int64_t rows, RowShape shape, int64_t each = 1) {
  return {.blocks_x = CeilDiv(rows, shape.rows * each),
          .threads_x = shape.threads,
          .threads_y = shape.rows};
}

// Rows that each thread adds up into its share of the weight's gradient. With more of them float32
// would lose digits (kRowsOfPart in rows.h).
inline constexpr int64_t kRowsAddedUp = 16;

// Returns the rows whose share of the weight's gradient one block writes.
constexpr int64_t RowsOfGradient(int64_t size) { return ShapeOfRow(size).rows * kRowsAddedUp; }

// Returns whether a thread keeps its share of the weight's gradient in registers.
constexpr bool IsKept(int64_t size) {
  return size <= int64_t{ShapeOfRow(size).threads} * kPackSize * kPacksKept;
}

// Numbers of SwiGLU's range that one block computes.
inline constexpr int64_t kNumbersOfBlock = int64_t{kThreads} * kPackSize * 2;

constexpr Geometry GeometryOfNumbers(int64_t count) {
  return {.blocks_x = CeilDiv(count, kNumbersOfBlock)};
}

// --- Casts to float8

// Returns the geometry of a pass over rows. The blocks are `most` at the most; each takes every
// `blocks_x`th row.
constexpr Geometry GeometryOfCast(int64_t rows, int64_t columns, int64_t most) {
  const uint64_t pairs =
      std::clamp<uint64_t>(CeilDiv(columns, int64_t{2} * kPackSize), kWarp, kMostThreads);
  return {.blocks_x = std::min(rows, most), .threads_x = static_cast<int>(std::bit_ceil(pairs))};
}

// Blocks that look for one magnitude of all rows: four or more for each multiprocessor of today's
// GPUs. Each calls atomicMax once.
inline constexpr int64_t kAmaxBlocks = 1024;

// Rows whose magnitudes one block compares, for each of its columns.
inline constexpr int64_t kAmaxRows = 512;
inline constexpr int kAmaxThreadsY = kThreads / kWarp;
inline constexpr int kAmaxColumns = kWarp * kPackSize;
static_assert(kAmaxColumns == kThreads, "each thread ends with one column");

constexpr Geometry GeometryOfColumns(int64_t rows, int64_t columns) {
  return {.blocks_x = CeilDiv(columns, kAmaxColumns),
          .blocks_y = CeilDiv(rows, kAmaxRows),
          .threads_x = kWarp,
          .threads_y = kAmaxThreadsY};
}

// Bytes of a transposed tile's side.
inline constexpr int kTile = 64;

// Rows are in x: a matrix may have more of them than 65,535 tiles.
constexpr Geometry GeometryOfTiles(int64_t padded_rows, int64_t columns) {
  return {.blocks_x = CeilDiv(padded_rows, kTile), .blocks_y = CeilDiv(columns, kTile)};
}

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CUDA_GEOMETRY_H_
