// The loops of loops.h on a GPU: a block of threads shares each row, or some lanes of a warp do if
// it is short. g++ compiles this for tests (launch.h).

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows_cuda.h"
#include "kernels/device_pack.h"
#include "kernels/loops.h"

namespace lockstep::kernels {
namespace {

// The place of a pack in its row. It is the thread's `nth` of the row.
struct Offset {
  int64_t at;
  int nth;
  __device__ operator int64_t() const { return at; }
};

// The part that both Machines of loops.h share: the threads of one threadIdx.y have a row. A thread
// has at most kMostPacks of it, which makes `nth` a constant of the unrolled loop; 0: any number.
template <int kMostPacks>
struct Threads {
  static constexpr int kPacks = kMostPacks;

  template <typename T>
  using Pack = DevicePack<T>;

  template <typename T, typename Visit>
  __device__ void ForEachPack(int64_t length, const Visit& visit) const {
    constexpr int64_t kSize = DevicePack<T>::kSize;
    static_assert(kSize == kPackSize);
    const int64_t first = threadIdx.x * kSize, step = blockDim.x * kSize;
    const auto visit_one = [&](Offset i) {
      if (i + kSize <= length)
        visit(i, Whole{});
      else
        visit(i, First{length - i});
    };
    if constexpr (kMostPacks == 0) {
      int nth = 0;
      for (int64_t i = first; i < length; i += step) visit_one({i, nth++});
    } else {
#pragma unroll
      for (int nth = 0; nth < kMostPacks; ++nth)
        if (first + nth * step < length) visit_one({first + nth * step, nth});
    }
  }
};

// A Machine: blockDim.x lanes of a warp have a row. It is a power of 2. All of them call Total.
template <int kMostPacks>
struct Lanes : Threads<kMostPacks> {
  static constexpr bool kIsBlock = false;

  template <typename P>
  __device__ typename P::Acc Total(const P& pack) const {
    const unsigned lanes = blockDim.x, lane = (threadIdx.y * lanes + threadIdx.x) % kWarp;
    const uint32_t row = lanes == kWarp ? 0xffffffffu : (1u << lanes) - 1;
    const uint32_t mask = row << (lane - threadIdx.x);
    typename P::Acc sum = pack.Total();
    for (unsigned offset = lanes / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(mask, sum, offset);
    return sum;
  }
};

// A Machine: a block of whole warps has a row. All of its threads call Total and Once. A kernel has
// one Block.
template <int kMostPacks>
struct Block : Threads<kMostPacks> {
  static constexpr bool kIsBlock = true;
  // Two buffers in turn. A thread that writes to one has passed a barrier since all read it.
  mutable int turn = 0;

  template <typename P>
  __device__ typename P::Acc Total(const P& pack) const {
    using Acc = typename P::Acc;
    __shared__ Acc buffers[2][kMostThreads / kWarp];
    Acc* const sums = buffers[turn];
    turn = 1 - turn;
    Acc sum = pack.Total();
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
    __syncthreads();
    sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += sums[warp];
    return sum;
  }

  template <typename Make>
  __device__ auto Once(const Make& make) const {
    __shared__ decltype(make()) result;
    __syncthreads();
    if (threadIdx.x == 0) result = make();
    __syncthreads();
    return result;
  }
};

// A share of the range for each threadIdx.y of each block.
template <template <typename, typename> typename Kernel, typename Machine, typename T,
          typename Rows>
__global__ void __launch_bounds__(kMostThreads)
    RunShares(const __grid_constant__ Rows rows, int64_t begin, int64_t end, int64_t share) {
  const int64_t first = begin + (int64_t{blockIdx.x} * blockDim.y + threadIdx.y) * share;
  if (first < end) Kernel<Machine, T>::Run(Machine{}, rows, first, std::min(first + share, end));
}

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

// Calls launch(a number of the dtype).
template <typename Launch>
void ByDtype(at::ScalarType dtype, const Launch& launch) {
  switch (dtype) {
    case at::kFloat: return launch(float());
    case at::kDouble: return launch(double());
    case at::kBFloat16: return launch(at::BFloat16());
    default: return launch(at::Half());
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
