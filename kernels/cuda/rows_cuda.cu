// The loops of loops.h on a GPU: a block of threads shares each row, or some lanes of a warp do if
// it is short. g++ compiles this for tests (launch.h).

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/machines.h"
#include "kernels/cuda/rows_cuda.h"
#include "kernels/device_pack.h"
#include "kernels/loops.h"

namespace lockstep::kernels {
namespace {

// RmsNormGradient. Threads keep their shares of the weight's gradient in registers until the end of
// the block's rows, which are rows.rows_of_part.
template <typename Machine, typename T>
__global__ void __launch_bounds__(kMostThreads)
    RunGradient(const __grid_constant__ RmsNormGradientRows rows) {
  using P = DevicePack<T>;
  using Acc = typename P::Acc;
  const Machine machine;
  P kept[Machine::kPacks];
  const int64_t first = blockIdx.x * rows.rows_of_part + threadIdx.y;
  const int64_t last = std::min((blockIdx.x + 1) * rows.rows_of_part, rows.rows);
  for (int64_t row = first; row < last; row += blockDim.y) {
    RmsNormGradient<Machine, T>::RunRow(machine, rows, row, [&](Offset i, auto, const P& share) {
      kept[i.nth] = kept[i.nth] + share;
    });
  }
  if (rows.dweight == nullptr) return;
  Acc* const dweight = Out<Acc>(rows.dweight, blockIdx.x * rows.size);
  if constexpr (Machine::kIsBlock) {
    machine.template ForEachPack<T>(
        rows.size, [&](Offset i, auto amount) { kept[i.nth].StoreAcc(dweight + i, amount); });
  } else {
    // The rows of the block are added up through shared memory, a pack of each thread at a time.
    __shared__ Acc sums[kThreads * kPackSize];
    const int64_t width = blockDim.x * kPackSize;
    const int64_t column = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int nth = 0; nth < Machine::kPacks; ++nth) {
      if (nth * width >= rows.size) break;
      if (nth > 0) __syncthreads();  // all have read the sums before
      for (int i = 0; i < kPackSize; ++i)
        sums[threadIdx.y * width + threadIdx.x * kPackSize + i] = kept[nth].v[i];
      __syncthreads();
      if (column < width && nth * width + column < rows.size) {
        Acc sum = 0;
        for (unsigned y = 0; y < blockDim.y; ++y) sum += sums[y * width + column];
        dweight[nth * width + column] = sum;
      }
    }
  }
}

void NormRows(const RmsNormRows& rows, int64_t begin, int64_t end) {
  const RowShape shape = ShapeOfRow(rows.size);
  const Geometry geometry = GeometryOfRows(end - begin, shape);
  ByDtype(rows.dtype, [&](auto number) {
    using T = decltype(number);
    LaunchKernel(shape.in_warp ? RunShares<RmsNorm, Lanes<0>, T, RmsNormRows>
                               : RunShares<RmsNorm, Block<0>, T, RmsNormRows>,
                 geometry, rows, begin, end, int64_t{1});
  });
}

// The range is all parts.
void NormGradients(const RmsNormGradientRows& rows, int64_t begin, int64_t end) {
  const RowShape shape = ShapeOfRow(rows.size);
  const Geometry geometry = {.blocks_x = end, .threads_x = shape.threads, .threads_y = shape.rows};
  ByDtype(rows.dtype, [&](auto number) {
    using T = decltype(number);
    if (!IsKept(rows.size)) {
      LaunchKernel(RunShares<RmsNormGradient, Block<0>, T, RmsNormGradientRows>, geometry, rows,
                   begin, end, int64_t{1});
    } else if (!shape.in_warp) {
      LaunchKernel(RunGradient<Block<kPacksKept>, T>, geometry, rows);
    } else if (rows.size <= shape.threads * kPackSize) {
      LaunchKernel(RunGradient<Lanes<1>, T>, geometry, rows);
    } else {
      LaunchKernel(RunGradient<Lanes<kPacksKept>, T>, geometry, rows);
    }
  });
}

// A block for some packs of each of its threads.
template <template <typename, typename> typename Kernel>
void ByNumber(const SwigluRows& rows, int64_t begin, int64_t end) {
  ByDtype(rows.dtype, [&](auto number) {
    LaunchKernel(RunShares<Kernel, Block<0>, decltype(number), SwigluRows>,
                 GeometryOfNumbers(end - begin), rows, begin, end, kNumbersOfBlock);
  });
}

// Some lanes for each row: one head is short. Each has two packs, of a pair of halves.
void RotateHeads(const RotateRows& rows, int64_t begin, int64_t end) {
  const Geometry geometry = GeometryOfRows(end - begin, ShapeOfShortRow(rows.size / 2));
  ByDtype(rows.dtype, [&](auto number) {
    LaunchKernel(RunShares<Rotate, Lanes<0>, decltype(number), RotateRows>, geometry, rows, begin,
                 end, int64_t{1});
  });
}

// The tensors of one launch. The arguments of a kernel may have 4,096 bytes.
struct AdamWBatch {
  static constexpr int64_t kTensors = 40;
  AdamWTensors all;
  AdamWTensor tensors[kTensors];
};
static_assert(sizeof(AdamWBatch) < 4000);

__global__ void __launch_bounds__(kMostThreads)
    RunBatch(const __grid_constant__ AdamWBatch batch, int64_t first_part) {
  AdamWTensors all = batch.all;
  all.tensors = batch.tensors;
  const int64_t part = first_part + blockIdx.x;
  RunAdamW(Block<0>{}, all, part, part + 1);
}

// A block for each part. The range is all parts.
void AdamWOnCuda(const AdamWTensors& all, int64_t /*begin*/, int64_t end) {
  for (int64_t from = 0; from < all.count; from += AdamWBatch::kTensors) {
    AdamWBatch batch = {.all = all, .tensors = {}};
    batch.all.count = std::min(AdamWBatch::kTensors, all.count - from);
    std::copy_n(all.tensors + from, batch.all.count, batch.tensors);
    const int64_t next = from + batch.all.count;
    const int64_t first_part = batch.tensors[0].first_part;
    const int64_t last_part = next < all.count ? all.tensors[next].first_part : end;
    LaunchKernel(RunBatch, Geometry{.blocks_x = last_part - first_part}, batch, first_part);
  }
}

}  // namespace

const RowKernels kRowKernelsOfCuda = {
    .rms_norm = NormRows,
    .rms_norm_gradient = NormGradients,
    .rows_of_part = RowsOfGradient,
    .swiglu = ByNumber<Swiglu>,
    .swiglu_gradient = ByNumber<SwigluGradient>,
    .rotate = RotateHeads,
    .adamw = AdamWOnCuda,
};

}  // namespace lockstep::kernels
