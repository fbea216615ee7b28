// The casts to float8 on a GPU: one kernel for the magnitudes, a small one for the scales, one for
// the cast. The arithmetic is in rounding.h; the CPU's tests check it.

#include <cstdint>

#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAStream.h"
#include "kernels/cuda/float8_cuda.h"
#include "kernels/device_pack.h"
#include "kernels/float8/rounding.h"

namespace lockstep::kernels {
namespace {

using float8::Matrix;

constexpr int kWarp = 32, kThreads = 256;
// Rows whose magnitudes one block compares, for each column.
constexpr int64_t kRowsOfBlock = 256;
constexpr int kTile = 64, kTileRows = 4;

unsigned Blocks(int64_t count, int64_t of_block) {
  return static_cast<unsigned>((count + of_block - 1) / of_block);
}

// Magnitudes are compared as integers: their order is the same, and no NaN gets lost.
__device__ uint32_t MagnitudeBits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// A block for each row.
template <typename T>
__global__ void __launch_bounds__(kThreads) AmaxOfRows(const __grid_constant__ Matrix m) {
  using P = DevicePack<T>;
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(m.x) + row * m.stride;
  uint32_t most = 0;
  for (int64_t i = threadIdx.x * P::kSize; i < m.columns; i += kThreads * P::kSize) {
    const int64_t left = m.columns - i;
    const P pack = left >= P::kSize ? P::Load(x + i, Whole{}) : P::Load(x + i, First{left});
    for (int j = 0; j < P::kSize; ++j) most = max(most, MagnitudeBits(pack.v[j]));
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % kWarp == 0) atomicMax(m.amax + row * m.scale_row_stride, most);
}

// A thread for each column of kRowsOfBlock rows.
template <typename T>
__global__ void __launch_bounds__(kThreads) AmaxOfColumns(const __grid_constant__ Matrix m) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= m.columns) return;
  const int64_t first = blockIdx.y * kRowsOfBlock;
  const T* x = static_cast<const T*>(m.x) + column;
  uint32_t most = 0;
  for (int64_t row = first; row < min(first + kRowsOfBlock, m.rows); ++row)
    most = max(most, MagnitudeBits(static_cast<float>(x[row * m.stride])));
  atomicMax(m.amax + column, most);
}

__global__ void Scales(const uint32_t* amax, int64_t count, float largest, bool power_of_2,
                       float* scale) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) scale[i] = float8::ScaleOf(__uint_as_float(amax[i]), largest, power_of_2);
}

// A block for each row.
template <typename T>
__global__ void __launch_bounds__(kThreads) CastRows(const __grid_constant__ Matrix m) {
  using P = DevicePack<T>;
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(m.x) + row * m.stride;
  uint8_t* y = m.y + row * m.columns;
  const float* scale = m.scale + row * m.scale_row_stride;
  for (int64_t i = threadIdx.x * P::kSize; i < m.columns; i += kThreads * P::kSize) {
    const int64_t count = min(m.columns - i, P::kSize);
    const P pack = count == P::kSize ? P::Load(x + i, Whole{}) : P::Load(x + i, First{count});
    uchar4 bytes;
    auto* byte = reinterpret_cast<uint8_t*>(&bytes);
    for (int j = 0; j < P::kSize; ++j) {
      const float scaled = pack.v[j] * scale[j < count ? (i + j) * m.scale_column_stride : 0];
      byte[j] = m.is_e5m2 ? float8::ToE5m2(scaled) : float8::ToE4m3(scaled);
    }
    if (count == P::kSize && reinterpret_cast<uintptr_t>(y + i) % sizeof(bytes) == 0) {
      *reinterpret_cast<uchar4*>(y + i) = bytes;
    } else {
      for (int j = 0; j < count; ++j) y[i + j] = byte[j];
    }
  }
}

template <typename T>
void CastMatrix(const Matrix& m, bool power_of_2) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const auto rows = static_cast<unsigned>(m.rows);
  int64_t scales = 1;
  if (m.scale_column_stride == 0) {
    scales = m.scale_row_stride == 0 ? 1 : m.rows;
    AmaxOfRows<T><<<rows, kThreads, 0, stream>>>(m);
  } else {
    scales = m.columns;
    const dim3 blocks(Blocks(m.columns, kThreads), Blocks(m.rows, kRowsOfBlock));
    AmaxOfColumns<T><<<blocks, kThreads, 0, stream>>>(m);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  const float largest = m.is_e5m2 ? float8::kLargestE5m2 : float8::kLargestE4m3;
  Scales<<<Blocks(scales, kThreads), kThreads, 0, stream>>>(m.amax, scales, largest, power_of_2,
                                                            m.scale);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  CastRows<T><<<rows, kThreads, 0, stream>>>(m);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// A block for each tile, by way of shared memory: rows of it are read, and columns written.
__global__ void __launch_bounds__(kTile* kTileRows)
    TransposeTiles(const uint8_t* from, int64_t rows, int64_t columns, int64_t padded,
                   uint8_t* to) {
  __shared__ uint8_t tile[kTile][kTile + 4];
  const int64_t column = int64_t{blockIdx.x} * kTile, row = int64_t{blockIdx.y} * kTile;
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const bool is_there = row + i < rows && column + threadIdx.x < columns;
    tile[i][threadIdx.x] = is_there ? from[(row + i) * columns + column + threadIdx.x] : 0;
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    if (column + i < columns && row + threadIdx.x < padded)
      to[(column + i) * padded + row + threadIdx.x] = tile[threadIdx.x][i];
  }
}

void Cast(const Matrix& m, bool power_of_2) {
  if (m.dtype == at::kFloat) return CastMatrix<float>(m, power_of_2);
  if (m.dtype == at::kHalf) return CastMatrix<at::Half>(m, power_of_2);
  CastMatrix<at::BFloat16>(m, power_of_2);
}

void Transpose(const uint8_t* from, int64_t rows, int64_t columns, int64_t padded, uint8_t* to) {
  const dim3 blocks(Blocks(columns, kTile), Blocks(padded, kTile)), threads(kTile, kTileRows);
  TransposeTiles<<<blocks, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(from, rows, columns,
                                                                            padded, to);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

const float8::CudaCasts kFloat8CastsOfCuda = {.cast = Cast, .transpose = Transpose};

}  // namespace lockstep::kernels
