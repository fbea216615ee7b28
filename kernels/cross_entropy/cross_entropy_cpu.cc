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

template <typename Vec>
Vec BoundedOf(const Vec& x) {
  return at::vec::maximum(x, Vec(kLeastLogP<typename Vec::value_type>));
}

template <typename Vec>
Vec ExpOf(const Vec& x) {
  return x.exp();
}

#if defined(CPU_CAPABILITY_AVX512)
// One instruction, which gives the second number if one is NaN. Any number down from -150 will do.
// With the bound in ExpOf, gcc 12 shares the instruction and schedules the loop of Gradient<true>
// for floats so that it takes 1.2 times as long.
template <>
at::vec::Vectorized<float> BoundedOf(const at::vec::Vectorized<float>& x) {
  return _mm512_max_ps(_mm512_set1_ps(-1e4f), x);
}

// Half of the time of ATen's, which is a call for 16 numbers. exp(x) = 2^n exp(r) with a whole n
// and |r| <= ln(2) / 2. The series of exp(r) ends where its rest is below 1e-8. NaN stays NaN.
template <>
at::vec::Vectorized<float> ExpOf(const at::vec::Vectorized<float>& x) {
  const __m512 limited = _mm512_max_ps(_mm512_set1_ps(-150), x);  // -infinity - -infinity is NaN
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(limited, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln(2) in two parts: the product with the first is exact.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), limited);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 sum = _mm512_set1_ps(1.f / 5040);
  for (const float factor : {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f})
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(factor));
  return _mm512_scalef_ps(sum, n);
}
#endif

// A Machine: one thread has a row.
struct LossCpu : Cpu {
  template <typename P>
  P Exp(const P& x) const {
    return {ExpOf(x.a), ExpOf(x.b)};
  }
  template <typename P>
  P Bounded(const P& x) const {
    return {BoundedOf(x.a), BoundedOf(x.b)};
  }

  template <typename T, Sums kSums>
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
        const P below = P::Load(block + i, Whole{}) - shifts, p = this->Exp(below);
        sum = sum + p;
        if constexpr (kSums != Sums::kOfLoss) total = total + below;
        if constexpr (kSums == Sums::kOfEntropy) weighted = weighted + p * Bounded(below);
      }
      LossSums<Acc> part = {.most = all.most,
                            .sum = sum.Total(),
                            .total = total.Total(),
                            .count = static_cast<Acc>(count),
                            .weighted = weighted.Total()};
      for (int64_t i = whole; i < count; ++i) {
        const Acc below = static_cast<Acc>(block[i]) - shift, p = std::exp(below);
        part.sum += p;
        part.weighted += p * std::max(below, kLeastLogP<Acc>);
        part.total += below;
      }
      all.sum += part.sum;
      all.weighted += part.weighted;
      all.total += part.total;
      all.count += part.count;
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
