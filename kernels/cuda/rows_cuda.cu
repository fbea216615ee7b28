// The loops of loops.h on a GPU: a block of threads shares each row.

#include <algorithm>
#include <cstdint>

#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAStream.h"
#include "kernels/cuda/rows_cuda.h"
#include "kernels/device_pack.h"
#include "kernels/loops.h"

namespace lockstep::kernels {
namespace {

constexpr int kWarp = 32, kThreads = 256, kRowsOfBlock = 8;

// The Machine of loops.h: the threads of one threadIdx.y. Total and Once need blockDim.y to be 1,
// and all threads of the block to call them.
struct Cuda {
  template <typename T>
  using Pack = DevicePack<T>;

  template <typename T, typename Visit>
  __device__ void ForEachPack(int64_t length, const Visit& visit) const {
    constexpr int64_t kSize = DevicePack<T>::kSize;
    for (int64_t i = threadIdx.x * kSize; i < length; i += blockDim.x * kSize) {
      if (i + kSize <= length)
        visit(i, Whole{});
      else
        visit(i, First{length - i});
    }
  }

  template <typename P>
  __device__ typename P::Acc Total(const P& pack) const {
    using Acc = typename P::Acc;
    __shared__ Acc sums[kThreads / kWarp];
    Acc sum = pack.Total();
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    __syncthreads();  // all have read the sums of the call before
    if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < kThreads / kWarp; ++warp) sum += sums[warp];
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
template <template <typename, typename> typename Kernel, typename T, typename Rows>
__global__ void __launch_bounds__(kThreads)
    RunShares(const __grid_constant__ Rows rows, int64_t begin, int64_t end, int64_t share) {
  const int64_t first = begin + (int64_t{blockIdx.x} * blockDim.y + threadIdx.y) * share;
  if (first < end) Kernel<Cuda, T>::Run(Cuda{}, rows, first, std::min(first + share, end));
}

template <template <typename, typename> typename Kernel, typename T, typename Rows>
void Launch(const Rows& rows, int64_t begin, int64_t end, int64_t share, dim3 threads) {
  const int64_t shares = (end - begin + share - 1) / share;
  const auto blocks = static_cast<unsigned>((shares + threads.y - 1) / threads.y);
  RunShares<Kernel, T, Rows>
      <<<blocks, threads, 0, c10::cuda::getCurrentCUDAStream()>>>(rows, begin, end, share);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <template <typename, typename> typename Kernel, typename Rows>
void LaunchByDtype(const Rows& rows, int64_t begin, int64_t end, int64_t share, dim3 threads) {
  switch (rows.dtype) {
    case at::kFloat: return Launch<Kernel, float>(rows, begin, end, share, threads);
    case at::kDouble: return Launch<Kernel, double>(rows, begin, end, share, threads);
    case at::kBFloat16: return Launch<Kernel, at::BFloat16>(rows, begin, end, share, threads);
    default: return Launch<Kernel, at::Half>(rows, begin, end, share, threads);
  }
}

// A block for each row, or part of the weight's gradient.
template <template <typename, typename> typename Kernel, typename Rows>
void ByRow(const Rows& rows, int64_t begin, int64_t end) {
  LaunchByDtype<Kernel>(rows, begin, end, 1, dim3(kThreads));
}

// A block for some packs of each of its threads.
template <template <typename, typename> typename Kernel, typename Rows>
void ByNumber(const Rows& rows, int64_t begin, int64_t end) {
  LaunchByDtype<Kernel>(rows, begin, end, kThreads * 16, dim3(kThreads));
}

// A warp for each row: one head is short.
template <template <typename, typename> typename Kernel, typename Rows>
void ByShortRow(const Rows& rows, int64_t begin, int64_t end) {
  LaunchByDtype<Kernel>(rows, begin, end, 1, dim3(kWarp, kRowsOfBlock));
}

// The tensors of one launch. The arguments of a kernel may have 4,096 bytes.
struct AdamWBatch {
  static constexpr int64_t kTensors = 40;
  AdamWTensors all;
  AdamWTensor tensors[kTensors];
};
static_assert(sizeof(AdamWBatch) < 4000);

__global__ void __launch_bounds__(kThreads)
    RunBatch(const __grid_constant__ AdamWBatch batch, int64_t first_part) {
  AdamWTensors all = batch.all;
  all.tensors = batch.tensors;
  const int64_t part = first_part + blockIdx.x;
  RunAdamW(Cuda{}, all, part, part + 1);
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
    RunBatch<<<static_cast<unsigned>(last_part - first_part), kThreads, 0,
               c10::cuda::getCurrentCUDAStream()>>>(batch, first_part);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

}  // namespace

const RowKernels kRowKernelsOfCuda = {
    .rms_norm = ByRow<RmsNorm, RmsNormRows>,
    .rms_norm_gradient = ByRow<RmsNormGradient, RmsNormGradientRows>,
    .swiglu = ByNumber<Swiglu, SwigluRows>,
    .swiglu_gradient = ByNumber<SwigluGradient, SwigluRows>,
    .rotate = ByShortRow<Rotate, RotateRows>,
    .adamw = AdamWOnCuda,
};

}  // namespace lockstep::kernels
