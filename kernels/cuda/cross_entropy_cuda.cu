// The cross entropy on a GPU: a block has a row of a vocabulary, some lanes of a warp a short row.
// Each thread keeps the largest of the logits that it has seen, and sums below it, so that the
// logits are read once. Where the gradient takes the logits' place the same thread reads a pack
// again and writes it. g++ compiles this for tests (launch.h).

#include <cmath>
#include <cstdint>

#include "kernels/cross_entropy/loss_loops.h"
#include "kernels/cuda/cross_entropy_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/machines.h"
#include "kernels/device_pack.h"

namespace lockstep::kernels {
namespace {

__device__ int CountOf(Whole) { return kPackSize; }
__device__ int CountOf(First part) { return static_cast<int>(part.count); }

// A Machine of loss_loops.h. Threads: Lanes<0> or Block<0>.
template <typename Threads>
struct LossThreads : Threads {
  template <typename T, Sums kSums>
  __device__ LossSums<typename DevicePack<T>::Acc> SumsOf(const T* z, int64_t size) const {
    using P = DevicePack<T>;
    using Acc = typename P::Acc;
    LossSums<Acc> mine;
    this->template ForEachPack<T>(size, [&](int64_t i, auto amount) {
      const P pack = P::Load(z + i, amount);
      const int count = CountOf(amount);
      Acc largest = mine.most;
      for (int j = 0; j < kPackSize; ++j)
        if (j < count) largest = Larger::Of(largest, pack.v[j]);
      if (largest > mine.most) mine.RaiseTo(largest);
      const Acc shift = mine.Shift();
      for (int j = 0; j < kPackSize; ++j) {
        if (j >= count) continue;
        const Acc below = pack.v[j] - shift, p = std::exp(below);
        mine.sum += p;
        if constexpr (kSums != Sums::kOfLoss) mine.total += below;
        if constexpr (kSums == Sums::kOfEntropy)
          mine.weighted += p * std::max(below, Acc(kLeastLogP<Acc>));
      }
      if constexpr (kSums != Sums::kOfLoss) mine.count += count;
    });
    const Acc most = this->template Reduced<Larger>(mine.most);
    if (most > mine.most) mine.RaiseTo(most);
    LossSums<Acc> all = {.most = most, .sum = this->template Reduced<Sum>(mine.sum)};
    if constexpr (kSums != Sums::kOfLoss) all.total = this->template Reduced<Sum>(mine.total);
    if constexpr (kSums == Sums::kOfEntropy)
      all.weighted = this->template Reduced<Sum>(mine.weighted);
    return all;
  }

  template <typename P>
  __device__ P Exp(const P& x) const {
    return kernels::Exp(x);
  }
  template <typename P>
  __device__ P Bounded(const P& x) const {
    const typename P::Acc least = kLeastLogP<typename P::Acc>;
    P result;
    for (int i = 0; i < P::kSize; ++i) result.v[i] = std::max(x.v[i], least);
    return result;
  }
  template <typename T>
  __device__ bool Owns(int64_t i) const {
    return i / kPackSize % blockDim.x == threadIdx.x;
  }
  __device__ void CheckLabel(int64_t label, int64_t size) const {
    LOCKSTEP_KERNEL_ASSERT(label >= 0 && label < size);
  }
};

template <typename Rows>
void RunRows(at::ScalarType dtype, int64_t size, const Rows& rows, int64_t begin, int64_t end) {
  const RowShape shape = ShapeOfRow(size);
  ByDtype(dtype, [&](auto number) {
    using T = decltype(number);
    LaunchKernel(shape.in_warp ? RunShares<LossLoops, LossThreads<Lanes<0>>, T, Rows>
                               : RunShares<LossLoops, LossThreads<Block<0>>, T, Rows>,
                 GeometryOfRows(end - begin, shape), rows, begin, end, int64_t{1});
  });
}

void Losses(const LossRows& rows, int64_t begin, int64_t end) {
  RunRows(rows.dtype, rows.size, rows, begin, end);
}

void Gradients(const LossGradientRows& rows, int64_t begin, int64_t end) {
  RunRows(rows.rows.dtype, rows.rows.size, rows, begin, end);
}

}  // namespace

const LossKernels kLossKernelsOfCuda = {.losses = Losses, .gradients = Gradients};

}  // namespace lockstep::kernels
