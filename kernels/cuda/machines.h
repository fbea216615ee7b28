// The Machines of loops.h on a GPU: a block of threads shares each row, or some lanes of a warp do
// if it is short. Private to rows_cuda.cu and cross_entropy_cuda.cu.

#ifndef LOCKSTEP_KERNELS_CUDA_MACHINES_H_
#define LOCKSTEP_KERNELS_CUDA_MACHINES_H_

// Nothing for other compilers, which do not know __device__.
#if defined(__CUDACC__) || defined(LOCKSTEP_CUDA_ON_CPU)

#include <algorithm>
#include <cstdint>

#include "c10/core/ScalarType.h"
#include "kernels/cuda/launch.h"
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

// The operations of reductions.
struct Sum {
  template <typename Acc>
  __device__ static Acc Of(Acc x, Acc y) {
    return x + y;
  }
};
struct Larger {
  template <typename Acc>
  __device__ static Acc Of(Acc x, Acc y) {
    return x < y ? y : x;
  }
};

// A Machine: blockDim.x lanes of a warp have a row. It is a power of 2. All of them call Total and
// Reduced.
template <int kMostPacks>
struct Lanes : Threads<kMostPacks> {
  static constexpr bool kIsBlock = false;

  template <typename P>
  __device__ typename P::Acc Total(const P& pack) const {
    return Reduced<Sum>(pack.Total());
  }

  // Returns what the numbers of all of the row's lanes become.
  template <typename Two, typename Acc>
  __device__ Acc Reduced(Acc number) const {
    const unsigned lanes = blockDim.x, lane = (threadIdx.y * lanes + threadIdx.x) % kWarp;
    const uint32_t row = lanes == kWarp ? 0xffffffffu : (1u << lanes) - 1;
    const uint32_t mask = row << (lane - threadIdx.x);
    for (unsigned offset = lanes / 2; offset > 0; offset /= 2)
      number = Two::Of(number, __shfl_xor_sync(mask, number, offset));
    return number;
  }
};

// A Machine: a block of whole warps has a row. All of its threads call Total, Reduced and Once. A
// kernel has one Block.
template <int kMostPacks>
struct Block : Threads<kMostPacks> {
  static constexpr bool kIsBlock = true;
  // Two buffers in turn. A thread that writes to one has passed a barrier since all read it.
  mutable int turn = 0;

  template <typename P>
  __device__ typename P::Acc Total(const P& pack) const {
    return Reduced<Sum>(pack.Total());
  }

  // Returns what the numbers of all threads become.
  template <typename Two, typename Acc>
  __device__ Acc Reduced(Acc number) const {
    __shared__ Acc buffers[2][kMostThreads / kWarp];
    Acc* const of_warps = buffers[turn];
    turn = 1 - turn;
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      number = Two::Of(number, __shfl_xor_sync(0xffffffffu, number, offset));
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = number;
    __syncthreads();
    number = of_warps[0];
    for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp)
      number = Two::Of(number, of_warps[warp]);
    return number;
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

}  // namespace
}  // namespace lockstep::kernels

#endif

#endif  // LOCKSTEP_KERNELS_CUDA_MACHINES_H_
