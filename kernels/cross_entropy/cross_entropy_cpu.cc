// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD, and
// kernels/rows_cpu.cc on why it includes as little as it can.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cross_entropy/loss_loops.h"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/pack.h"

namespace lockstep::kernels::CPU_CAPABILITY {
namespace {

// Logits whose largest is found before they are added up, from the first cache.
constexpr int64_t kBlock = 2048;

template <typename T>
Pack<T> Larger(const Pack<T>& x, const Pack<T>& y) {
  return {at::vec::maximum(x.a, y.a), at::vec::maximum(x.b, y.b)};
}

// Returns the larger number, or NaN if one is.
template <typename Acc>
Acc Larger(Acc x, Acc y) {
  return x < y || std::isnan(y) ? y : x;
}

// Returns the largest number of all places.
template <typename T>
typename Pack<T>::Acc Largest(const Pack<T>& pack) {
  using P = Pack<T>;
  typename P::Acc numbers[P::kHalf];
  at::vec::maximum(pack.a, pack.b).store(numbers);
  typename P::Acc largest = numbers[0];
  for (int64_t i = 1; i < P::kHalf; ++i) largest = Larger(largest, numbers[i]);
  return largest;
}

// A Machine: one thread has a row.
struct LossCpu : Cpu {
  template <typename T, bool kMore>
  LossSums<typename Pack<T>::Acc> SumsOf(const T* z, int64_t size) const {
    using P = Pack<T>;
    using Acc = typename P::Acc;
    LossSums<Acc> all;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
      const T* const block = z + begin;
      const int64_t count = std::min(kBlock, size - begin), whole = count / P::kSize * P::kSize;
      P most(-std::numeric_limits<Acc>::infinity());
      for (int64_t i = 0; i < whole; i += P::kSize)
        most = Larger(most, P::Load(block + i, Whole{}));
      Acc largest = Larger(all.most, Largest(most));
      for (int64_t i = whole; i < count; ++i) largest = Larger(largest, static_cast<Acc>(block[i]));
      if (largest != all.most) all.RaiseTo(largest);

      const Acc shift = all.Shift();
      const P shifts(shift);
      P sum(Acc(0)), weighted(Acc(0)), total(Acc(0));
      for (int64_t i = 0; i < whole; i += P::kSize) {
        const P value = P::Load(block + i, Whole{}), below = value - shifts, p = Exp(below);
        sum = sum + p;
        if constexpr (kMore) {
          weighted = weighted + p * below;
          total = total + value;
        }
      }
      LossSums<Acc> part = {.most = all.most,
                            .sum = sum.Total(),
                            .weighted = weighted.Total(),
                            .total = total.Total()};
      for (int64_t i = whole; i < count; ++i) {
        const Acc value = static_cast<Acc>(block[i]), below = value - shift, p = std::exp(below);
        part.sum += p;
        part.weighted += p * below;
        part.total += value;
      }
      all.sum += part.sum;
      all.weighted += part.weighted;
      all.total += part.total;
    }
    return all;
  }

  template <typename T>
  bool Owns(int64_t /*i*/) const {
    return true;
  }
  // The operator checked the labels.
  void CheckLabel(int64_t /*label*/, int64_t /*size*/) const {}
};

template <typename Rows>
void RunByDtype(at::ScalarType dtype, const Rows& rows, int64_t begin, int64_t end) {
  const LossCpu cpu;
  switch (dtype) {
    case at::kFloat: return LossLoops<LossCpu, float>::Run(cpu, rows, begin, end);
    case at::kDouble: return LossLoops<LossCpu, double>::Run(cpu, rows, begin, end);
    case at::kBFloat16: return LossLoops<LossCpu, at::BFloat16>::Run(cpu, rows, begin, end);
    default: return LossLoops<LossCpu, at::Half>::Run(cpu, rows, begin, end);
  }
}

}  // namespace

extern const LossKernels kLossKernels;
const LossKernels kLossKernels = {
    .losses = [](const LossRows& rows, int64_t begin,
                 int64_t end) { RunByDtype(rows.dtype, rows, begin, end); },
    .gradients = [](const LossGradientRows& rows, int64_t begin,
                    int64_t end) { RunByDtype(rows.rows.dtype, rows, begin, end); },
};

}  // namespace lockstep::kernels::CPU_CAPABILITY
