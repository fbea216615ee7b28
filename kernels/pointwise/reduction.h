// The sum, mean, largest or smallest number of a row. Private to interpreter_cpu.cc, which is
// compiled three times; see there.
//
// Sums are float64. A block is added up in four vectors, and blocks by a compensated sum (Neumaier,
// 1974). The result depends on the row and the instruction set, not on threads or on other rows.

#ifndef LOCKSTEP_KERNELS_POINTWISE_REDUCTION_H_
#define LOCKSTEP_KERNELS_POINTWISE_REDUCTION_H_

#include <cstdint>
#include <type_traits>

#include "ATen/cpu/vec/functional.h"
#include "kernels/pointwise/interpreter.h"

namespace lockstep::kernels::pointwise::CPU_CAPABILITY {

using Doubles = at::vec::Vectorized<double>;

// A vector of float as two of double.
struct DoublePair {
  Doubles first, second;
};

inline DoublePair Widened(const at::vec::Vectorized<float>& x) {
#if defined(CPU_CAPABILITY_AVX512)
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
          _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
#elif defined(CPU_CAPABILITY_AVX2)
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
#else
  float numbers[at::vec::Vectorized<float>::size()];
  double wide[at::vec::Vectorized<float>::size()];
  x.store(numbers);
  for (int64_t i = 0; i < at::vec::Vectorized<float>::size(); ++i) wide[i] = numbers[i];
  return {Doubles::loadu(wide), Doubles::loadu(wide + Doubles::size())};
#endif
}

template <typename Acc>
class Reduction {
  using Vec = at::vec::Vectorized<Acc>;
  static constexpr int64_t kLanes = Vec::size();

 public:
  void Start(Op op) {
    constexpr double kInfinity = __builtin_inf();
    op_ = op;
    total_ = op == Op::kAmax ? -kInfinity : op == Op::kAmin ? kInfinity : 0;
    lost_ = 0;
  }

  // Takes the next numbers of the row. A stride of 0 is a vector that stands for all numbers.
  void Add(const Acc* numbers, int64_t stride, int64_t count) {
    if (op_ == Op::kAmax)
      AddExtreme<true>(numbers, stride, count);
    else if (op_ == Op::kAmin)
      AddExtreme<false>(numbers, stride, count);
    else
      AddToSum(SumOf(numbers, stride, count));
  }

  // Returns the result for a row of `length` numbers, when all were taken.
  double Finish(int64_t length) const {
    // The loss of an infinite sum is NaN.
    const double total = lost_ - lost_ == 0 ? total_ + lost_ : total_;
    return op_ == Op::kMean ? total / static_cast<double>(length) : total;
  }

 private:
  void AddToSum(double x) {
    const double sum = total_ + x;
    lost_ += (total_ < 0 ? -total_ : total_) >= (x < 0 ? -x : x) ? (total_ - sum) + x
                                                                 : (x - sum) + total_;
    total_ = sum;
  }

  // Returns the last numbers, fewer than a vector, and `rest` in the other lanes.
  static Vec Last(const Acc* numbers, int64_t count, Acc rest) {
    Acc lanes[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] = i < count ? numbers[i] : rest;
    return Vec::loadu(lanes);
  }

  static double SumOf(const Acc* numbers, int64_t stride, int64_t count) {
    Doubles sums[4] = {Doubles(0.0), Doubles(0.0), Doubles(0.0), Doubles(0.0)};
    int64_t i = 0;
    if constexpr (std::is_same_v<Acc, double>) {
      for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
        sums[0] = sums[0] + Vec::loadu(numbers + i * stride);
        sums[1] = sums[1] + Vec::loadu(numbers + (i + kLanes) * stride);
        sums[2] = sums[2] + Vec::loadu(numbers + (i + 2 * kLanes) * stride);
        sums[3] = sums[3] + Vec::loadu(numbers + (i + 3 * kLanes) * stride);
      }
      for (; i < count; i += kLanes)
        sums[0] = sums[0] + (i + kLanes <= count ? Vec::loadu(numbers + i * stride)
                                                 : Last(numbers + i * stride, count - i, 0));
    } else {
      const auto add = [&](const Vec& x, int64_t to) {
        const DoublePair pair = Widened(x);
        sums[to] = sums[to] + pair.first;
        sums[to + 1] = sums[to + 1] + pair.second;
      };
      for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
        add(Vec::loadu(numbers + i * stride), 0);
        add(Vec::loadu(numbers + (i + kLanes) * stride), 2);
      }
      for (; i < count; i += kLanes)
        add(i + kLanes <= count ? Vec::loadu(numbers + i * stride)
                                : Last(numbers + i * stride, count - i, 0),
            0);
    }
    double lanes[Doubles::size()];
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).store(lanes);
    for (int64_t half = Doubles::size() / 2; half > 0; half /= 2)
      for (int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    return lanes[0];
  }

  // NaN is both the largest and the smallest number, as in ATen.
  template <bool kLargest>
  void AddExtreme(const Acc* numbers, int64_t stride, int64_t count) {
    const auto of = [](const Vec& a, const Vec& b) {
      return kLargest ? at::vec::maximum(a, b) : at::vec::minimum(a, b);
    };
    const Acc none = static_cast<Acc>(kLargest ? -__builtin_inf() : __builtin_inf());
    Vec first(none), second(none);
    int64_t i = 0;
    for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
      first = of(first, Vec::loadu(numbers + i * stride));
      second = of(second, Vec::loadu(numbers + (i + kLanes) * stride));
    }
    for (; i < count; i += kLanes)
      first = of(first, i + kLanes <= count ? Vec::loadu(numbers + i * stride)
                                            : Last(numbers + i * stride, count - i, none));
    Acc lanes[kLanes];
    of(first, second).store(lanes);
    for (int64_t j = 0; j < kLanes; ++j) {
      const double x = lanes[j];
      if (x != x || (kLargest ? x > total_ : x < total_)) total_ = x;
    }
  }

  // Start sets them: a row has more of these than it uses.
  Op op_;
  double total_;
  double lost_;  // by rounding the sum
};

}  // namespace lockstep::kernels::pointwise::CPU_CAPABILITY

#endif  // LOCKSTEP_KERNELS_POINTWISE_REDUCTION_H_
