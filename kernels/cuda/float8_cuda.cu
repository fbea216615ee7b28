// The casts to float8 on a GPU. Where each row has a scale, one kernel finds its magnitude and
// casts it. Otherwise there is one for the magnitudes, a small one for the scales, one for the
// cast. The last one also writes the transposed copy, by way of shared memory. The arithmetic is in
// rounding.h; the CPU's tests check it. g++ compiles this for tests (launch.h).

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/float8_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/device_pack.h"
#include "kernels/float8/rounding.h"

namespace lockstep::kernels {
namespace {

using float8::Matrix;
using float8::TransposedCopy;

// Magnitudes are compared as integers: their order is the same, and no NaN gets lost.
__device__ uint32_t MagnitudeBits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Loads `count` numbers, or all of a pack.
template <typename T>
__device__ DevicePack<T> LoadPart(const T* from, int64_t count) {
  return count >= kPackSize ? DevicePack<T>::Load(from, Whole{})
                            : DevicePack<T>::Load(from, First{count});
}

template <typename T>
__device__ const T* RowOf(const Matrix& m, int64_t row) {
  return static_cast<const T*>(m.x) + row * m.stride;
}

// Returns the largest magnitude that a thread sees in a row.
template <typename T>
__device__ uint32_t AmaxOfThread(const T* x, int64_t columns) {
  uint32_t most = 0;
  for (int64_t i = threadIdx.x * kPackSize; i < columns; i += blockDim.x * kPackSize) {
    const DevicePack<T> pack = LoadPart(x + i, columns - i);
    for (int j = 0; j < kPackSize; ++j) most = std::max(most, MagnitudeBits(pack.v[j]));
  }
  return most;
}

// Returns the largest number of all threads of the block, which has whole warps. A kernel calls it
// once.
__device__ uint32_t MaxOfBlock(uint32_t most) {
  __shared__ uint32_t maxima[kMostThreads / kWarp];
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % kWarp == 0) maxima[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) most = std::max(most, maxima[warp]);
  return most;
}

// Each block takes every gridDim.x-th row.
template <typename T>
__global__ void __launch_bounds__(kMostThreads) AmaxOfAll(const __grid_constant__ Matrix m) {
  uint32_t most = 0;
  for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x)
    most = std::max(most, AmaxOfThread(RowOf<T>(m, row), m.columns));
  most = MaxOfBlock(most);
  if (threadIdx.x == 0) atomicMax(m.amax, most);
}

// A thread for a pack of columns, and kAmaxThreadsY of them for kAmaxRows rows. The lanes of a warp
// share a row: they find its magnitude from the same loads, unless of_rows is null.
template <typename T>
__global__ void __launch_bounds__(kMostThreads)
    AmaxOfColumns(const __grid_constant__ Matrix m, uint32_t* of_rows, uint32_t* of_columns) {
  __shared__ uint32_t maxima[kAmaxThreadsY][kAmaxColumns];
  const int64_t first = int64_t{blockIdx.x} * kAmaxColumns, mine = threadIdx.x * kPackSize;
  uint32_t most[kPackSize] = {};
  const int64_t begin = blockIdx.y * kAmaxRows, end = std::min(begin + kAmaxRows, m.rows);
  for (int64_t row = begin + threadIdx.y; row < end; row += kAmaxThreadsY) {
    uint32_t most_of_row = 0;
    if (first + mine < m.columns) {
      const DevicePack<T> pack =
          LoadPart(RowOf<T>(m, row) + first + mine, m.columns - first - mine);
      for (int j = 0; j < kPackSize; ++j) {
        const uint32_t bits = MagnitudeBits(pack.v[j]);
        most[j] = std::max(most[j], bits);
        most_of_row = std::max(most_of_row, bits);
      }
    }
    if (of_rows == nullptr) continue;
    most_of_row = __reduce_max_sync(0xffffffffu, most_of_row);
    if (threadIdx.x == 0) atomicMax(of_rows + row, most_of_row);
  }
  for (int j = 0; j < kPackSize; ++j) maxima[threadIdx.y][mine + j] = most[j];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.y * kWarp + threadIdx.x);
  if (first + column >= m.columns) return;
  uint32_t largest = 0;
  for (int y = 0; y < kAmaxThreadsY; ++y) largest = std::max(largest, maxima[y][column]);
  atomicMax(of_columns + first + column, largest);
}

__global__ void __launch_bounds__(kMostThreads)
    Scales(const uint32_t* amax, int64_t count, float largest, bool power_of_2, float* scale) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) scale[i] = float8::ScaleOf(__uint_as_float(amax[i]), largest, power_of_2);
}

// The bytes of a pack, which are stored at once where their address allows it.
struct alignas(kPackSize) PackBytes {
  uint8_t byte[kPackSize];
};

__device__ PackBytes ToBytes(const DevicePack<float>& scaled, bool is_e5m2) {
  PackBytes bytes;
  for (int j = 0; j < kPackSize; ++j)
    bytes.byte[j] = is_e5m2 ? float8::ToE5m2(scaled.v[j]) : float8::ToE4m3(scaled.v[j]);
  return bytes;
}

__device__ void StoreBytes(const PackBytes& bytes, int64_t count, uint8_t* to) {
  if (count == kPackSize && reinterpret_cast<uintptr_t>(to) % sizeof(bytes) == 0) {
    *reinterpret_cast<PackBytes*>(to) = bytes;
  } else {
    for (int j = 0; j < kPackSize; ++j)
      if (j < count) to[j] = bytes.byte[j];
  }
}

// The block casts a row. scale(i, count) returns the scales of a pack.
template <typename T, typename Scale>
__device__ void CastRow(const Matrix& m, int64_t row, const Scale& scale) {
  const T* x = RowOf<T>(m, row);
  uint8_t* y = m.y + row * m.columns;
  for (int64_t i = threadIdx.x * kPackSize; i < m.columns; i += blockDim.x * kPackSize) {
    const int64_t count = std::min(m.columns - i, int64_t{kPackSize});
    const DevicePack<float> scaled = LoadPart(x + i, count).template As<float>() * scale(i, count);
    StoreBytes(ToBytes(scaled, m.is_e5m2), count, y + i);
  }
}

// A block for each row. The scales are of the matrix, or of the columns.
template <typename T>
__global__ void __launch_bounds__(kMostThreads) CastRows(const __grid_constant__ Matrix m) {
  if (m.scale_column_stride == 0) {
    const DevicePack<float> one(*m.scale);
    CastRow<T>(m, blockIdx.x, [&](int64_t, int64_t) { return one; });
  } else {
    CastRow<T>(m, blockIdx.x,
               [&](int64_t i, int64_t count) { return LoadPart(m.scale + i, count); });
  }
}

// A block for each row, which has a scale of its own.
template <typename T>
__global__ void __launch_bounds__(kMostThreads)
    ScaleAndCastRows(const __grid_constant__ Matrix m, float largest, bool power_of_2) {
  const int64_t row = blockIdx.x;
  const uint32_t most = MaxOfBlock(AmaxOfThread(RowOf<T>(m, row), m.columns));
  const float scale = float8::ScaleOf(__uint_as_float(most), largest, power_of_2);
  if (threadIdx.x == 0) m.scale[row] = scale;
  const DevicePack<float> one(scale);
  CastRow<T>(m, row, [&](int64_t, int64_t) { return one; });
}

void LaunchScales(const uint32_t* amax, int64_t count, bool is_e5m2, bool power_of_2,
                  float* scale) {
  LaunchKernel(Scales, Geometry{.blocks_x = CeilDiv(count, kThreads)}, amax, count,
               is_e5m2 ? float8::kLargestE5m2 : float8::kLargestE4m3, power_of_2, scale);
}

// Finds the one scale of a matrix.
template <typename T>
void ScaleMatrix(const Matrix& m, bool power_of_2) {
  LaunchKernel(AmaxOfAll<T>, GeometryOfCast(m.rows, m.columns, kAmaxBlocks), m);
  LaunchScales(m.amax, 1, m.is_e5m2, power_of_2, m.scale);
}

// Finds the scales of columns, and with the same loads those of rows unless of_rows is null.
template <typename T>
void ScaleColumns(const Matrix& m, uint32_t* of_rows, uint32_t* of_columns, bool power_of_2,
                  float* scale) {
  LaunchKernel(AmaxOfColumns<T>, GeometryOfColumns(m.rows, m.columns), m, of_rows, of_columns);
  LaunchScales(of_columns, m.columns, m.is_e5m2, power_of_2, scale);
  if (of_rows != nullptr) LaunchScales(of_rows, m.rows, m.is_e5m2, power_of_2, m.scale);
}

template <typename T>
void CastMatrix(const Matrix& m, bool power_of_2) {
  const float largest = m.is_e5m2 ? float8::kLargestE5m2 : float8::kLargestE4m3;
  const Geometry each_row = GeometryOfCast(m.rows, m.columns, kMostBlocks);
  if (m.scale_row_stride != 0)
    return LaunchKernel(ScaleAndCastRows<T>, each_row, m, largest, power_of_2);
  if (m.scale_column_stride == 0) {
    ScaleMatrix<T>(m, power_of_2);
  } else {
    ScaleColumns<T>(m, nullptr, m.amax, power_of_2, m.scale);
  }
  LaunchKernel(CastRows<T>, each_row, m);
}

// 16 bytes, moved at once where their address allows it.
struct alignas(16) Line {
  uint8_t byte[16];
};
constexpr int kLine = sizeof(Line), kLinesOfTile = kTile / kLine;
static_assert(kTile * kLinesOfTile == kThreads, "a line for each thread");

// A tile of bytes in shared memory. Four bytes between rows spread a column over the banks.
struct Tile {
  alignas(4) uint8_t byte[kTile][kTile + 4];

  // Writes bytes of a row. `column` is a multiple of 4.
  template <typename Bytes>
  __device__ void Put(int row, int column, const Bytes& bytes) {
    for (int i = 0; i < static_cast<int>(sizeof(bytes)); i += 4) {
      uint32_t word;
      memcpy(&word, bytes.byte + i, sizeof(word));
      *reinterpret_cast<uint32_t*>(&byte[row][column + i]) = word;
    }
  }

  // Stores columns of the tile as rows of `to` [columns, padded], a line for each thread. `padded`
  // is a multiple of a line.
  __device__ void StoreTransposed(int64_t first_row, int64_t first_column, int64_t columns,
                                  int64_t padded, uint8_t* to) const {
    const int side = static_cast<int>(threadIdx.x) / kLinesOfTile;
    const int line = static_cast<int>(threadIdx.x) % kLinesOfTile * kLine;
    if (first_column + side >= columns || first_row + line >= padded) return;
    Line write;
    for (int i = 0; i < kLine; ++i) write.byte[i] = byte[line + i][side];
    uint8_t* const at = to + (first_column + side) * padded + first_row + line;
    if (reinterpret_cast<uintptr_t>(at) % kLine == 0) {
      *reinterpret_cast<Line*>(at) = write;
    } else {
      for (int i = 0; i < kLine; ++i) at[i] = write.byte[i];
    }
  }
};

// A block for each tile: rows of it are read, and columns written.
__global__ void __launch_bounds__(kMostThreads)
    TransposeTiles(const uint8_t* from, int64_t rows, int64_t columns, int64_t padded,
                   uint8_t* to) {
  __shared__ Tile tile;
  const int side = static_cast<int>(threadIdx.x) / kLinesOfTile;
  const int line = static_cast<int>(threadIdx.x) % kLinesOfTile * kLine;
  const int64_t first_row = int64_t{blockIdx.x} * kTile, first_column = int64_t{blockIdx.y} * kTile;
  const int64_t row = first_row + side, column = first_column + line;
  Line read = {};
  if (row < rows) {
    const uint8_t* const at = from + row * columns + column;
    if (column + kLine <= columns && reinterpret_cast<uintptr_t>(at) % kLine == 0) {
      read = *reinterpret_cast<const Line*>(at);
    } else {
      for (int i = 0; i < kLine; ++i)
        if (column + i < columns) read.byte[i] = at[i];
    }
  }
  tile.Put(side, line, read);
  __syncthreads();
  tile.StoreTransposed(first_row, first_column, columns, padded, to);
}

constexpr int kPacksOfTile = kTile / kPackSize, kRowsAtOnce = kThreads / kPacksOfTile;
static_assert(kTile % kRowsAtOnce == 0, "each thread has as many packs");

// A block for each tile: it reads x once, and writes both copies, or the transposed one alone. A
// thread has packs of the same columns.
template <typename T>
__global__ void __launch_bounds__(kMostThreads)
    CastTiles(const __grid_constant__ Matrix m, const __grid_constant__ TransposedCopy copy) {
  __shared__ Tile tile;
  const int64_t first_row = int64_t{blockIdx.x} * kTile, first_column = int64_t{blockIdx.y} * kTile;
  const int place = static_cast<int>(threadIdx.x) % kPacksOfTile * kPackSize;
  const int64_t column = first_column + place;
  const int64_t count = std::clamp<int64_t>(m.columns - column, 0, kPackSize);
  const bool is_one = copy.scale_stride == 0;
  const DevicePack<float> scale =
      is_one ? DevicePack<float>(*m.scale) : LoadPart(copy.scale + column, count);
  for (int side = static_cast<int>(threadIdx.x) / kPacksOfTile; side < kTile; side += kRowsAtOnce) {
    const int64_t row = first_row + side;
    PackBytes bytes = {};
    if (row < m.rows && count > 0) {
      const DevicePack<float> x = LoadPart(RowOf<T>(m, row) + column, count).template As<float>();
      bytes = ToBytes(x * scale, m.is_e5m2);
      if (m.y != nullptr) {
        const PackBytes as_is =
            is_one ? bytes : ToBytes(x * DevicePack<float>(m.scale[row]), m.is_e5m2);
        StoreBytes(as_is, count, m.y + row * m.columns + column);
      }
    }
    tile.Put(side, place, bytes);
  }
  __syncthreads();
  tile.StoreTransposed(first_row, first_column, m.columns, copy.padded, copy.y);
}

template <typename T>
void CastMatrixTransposed(const Matrix& m, const TransposedCopy& copy, bool power_of_2) {
  if (copy.scale_stride == 0) {
    ScaleMatrix<T>(m, power_of_2);
  } else {
    ScaleColumns<T>(m, m.y == nullptr ? nullptr : m.amax, copy.amax, power_of_2, copy.scale);
  }
  LaunchKernel(CastTiles<T>, GeometryOfTiles(copy.padded, m.columns), m, copy);
}

void Cast(const Matrix& m, bool power_of_2) {
  if (m.dtype == at::kFloat) return CastMatrix<float>(m, power_of_2);
  if (m.dtype == at::kHalf) return CastMatrix<at::Half>(m, power_of_2);
  CastMatrix<at::BFloat16>(m, power_of_2);
}

void CastTransposed(const Matrix& m, const TransposedCopy& copy, bool power_of_2) {
  if (m.dtype == at::kFloat) return CastMatrixTransposed<float>(m, copy, power_of_2);
  if (m.dtype == at::kHalf) return CastMatrixTransposed<at::Half>(m, copy, power_of_2);
  CastMatrixTransposed<at::BFloat16>(m, copy, power_of_2);
}

void Transpose(const uint8_t* from, int64_t rows, int64_t columns, int64_t padded, uint8_t* to) {
  LaunchKernel(TransposeTiles, GeometryOfTiles(padded, columns), from, rows, columns, padded, to);
}

}  // namespace

const float8::CudaCasts kFloat8CastsOfCuda = {
    .cast = Cast, .cast_transposed = CastTransposed, .transpose = Transpose};

}  // namespace lockstep::kernels
