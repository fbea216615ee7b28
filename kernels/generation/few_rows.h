// The loop of a linear layer whose input has few rows, as in generation: one row for each sequence.
// Private to generation_cpu.cc, which is compiled once for each instruction set. cached_attention.h
// computes its scores with it.
//
// There are so few operations for each number of the weight that reading it takes all the time.
// A core that reads one stream of memory waits: it gets 20 GB/s where several streams at once get
// 30 (2026-11-22, one core of an AMD EPYC). So a thread divides its rows of the weight into equal
// parts that lie far apart, and advances through all of them together. For four rows of x this is
// also three times as fast as a product of matrices, which copies the weight into another order
// first.
//
// The order of additions depends neither on the thread's part nor on other rows. So a row has the
// same bits for any number of threads, and next to any few other rows.

#ifndef LOCKSTEP_KERNELS_GENERATION_FEW_ROWS_H_
#define LOCKSTEP_KERNELS_GENERATION_FEW_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ATen/cpu/vec/functional.h"
#include "kernels/generation/generation.h"
#include "kernels/loops.h"
#include "kernels/pack.h"

namespace lockstep::kernels::CPU_CAPABILITY {

// The numbers of bias and residual are T, those of y are Y, and those of the weight W: T or int8.
template <typename T, typename Y = T, typename W = T>
struct FewRows {
  using P = Pack<T>;
  using Acc = typename P::Acc;
  using Vec = typename P::Vec;
  static constexpr int kLanes = static_cast<int>(P::kHalf);
  // Bytes of a stream that are computed with at a time, and how far ahead it is fetched.
  static constexpr int kLineBytes = 64, kAheadBytes = 320;
  static constexpr int kLine = kLineBytes / static_cast<int>(sizeof(W));
  // The length of a partial sum; partial sums are then added. Longer sums in float32 would have
  // larger errors than ATen's.
  static constexpr int64_t kNumbersOfSum = 1024;
  // Rows of x that one pass over a row of the weight takes.
  static constexpr int64_t kRowsOfPass = 4;
  // All sums of a pass are in registers: AVX2 has 16.
  static constexpr int kMostSums = 12;

  static constexpr bool kIsInt8 = std::is_same_v<W, int8_t>;

  static Vec Load(const W* from) {
    if constexpr (kIsInt8) {
      return LoadBytes(from);
    } else if constexpr (P::kIsReduced) {
      Vec numbers;
      at::vec::load_to_float<T>(from, numbers);
      return numbers;
    } else {
      return Vec::loadu(from);
    }
  }

  static Vec Load(const W* from, First part) {
    if constexpr (kIsInt8) {
      W numbers[kLanes] = {};
      std::copy_n(from, part.count, numbers);
      return LoadBytes(numbers);
    } else {
      return P::Load(from, part).a;
    }
  }

  // Adds products of kLanes numbers to the sums of one row of x: sums[r] += weights[r] * x.
  template <size_t... r>
  static void AddRow(const Vec* weights, const Vec& x, Vec* sums, std::index_sequence<r...>) {
    ((sums[r] = at::vec::fmadd(weights[r], x, sums[r])), ...);
  }

  // The same for all rows. Indices are constants, so that the sums stay in registers.
  template <typename LoadWeight, typename LoadX, size_t... r, size_t... row>
  static void Add(const LoadWeight& load_weight, const LoadX& load_x, Vec* sums,
                  std::index_sequence<r...> outputs, std::index_sequence<row...>) {
    const Vec weights[] = {load_weight(r)...};
    (AddRow(weights, load_x(row), sums + row * sizeof...(r), outputs), ...);
  }

  // Returns the totals of `sums`, from number `first` on, in their order, and zeros after the last.
  // Adds in pairs: each level interleaves two vectors and adds them, until one vector holds the
  // total of one sum in each lane.
  template <int num_sums, int first, int count = 1>
  static Vec Totals(const Vec* sums) {
    if constexpr (count == kLanes) {
      if constexpr (first < num_sums) return sums[first];
      return Vec(Acc(0));
    } else {
      const auto [low, high] =
          at::vec::interleave2(Totals<num_sums, first, 2 * count>(sums),
                               Totals<num_sums, first + count, 2 * count>(sums));
      return low + high;
    }
  }

  // Calls store(i, total) for each of `sums`, from number `first` on.
  template <int num_sums, int first = 0, typename Store>
  static void StoreTotals(const Vec* sums, const Store& store) {
    Acc totals[kLanes];
    Totals<num_sums, first>(sums).store(totals);
    for (int i = first; i < std::min(first + kLanes, num_sums); ++i) store(i, totals[i - first]);
    if constexpr (first + kLanes < num_sums) StoreTotals<num_sums, first + kLanes>(sums, store);
  }

  // Computes some numbers, from row `first` on, of each of the outputs output, output + apart, ...
  // The sum of output r and a row is number row * sizeof...(r) + r.
  template <size_t... r, size_t... row, size_t... sum>
  static void RunBlock(const LinearRows& m, int64_t output, int64_t apart, int64_t first,
                       std::index_sequence<r...> outputs, std::index_sequence<row...> rows,
                       std::index_sequence<sum...>) {
    constexpr int kOutputs = sizeof...(r), kSums = sizeof...(sum);
    const W* weight = In<W>(m.weight, output * m.weight_stride);
    const int64_t stream = apart * m.weight_stride;
    const Acc* x = In<Acc>(m.x, first * m.size);
    Vec totals[] = {(static_cast<void>(sum), Vec(Acc(0)))...};
    for (int64_t i = 0, end = 0; i < m.size; i = end) {
      end = std::min(i + kNumbersOfSum, m.size);
      Vec sums[] = {(static_cast<void>(sum), Vec(Acc(0)))...};
      for (; i + kLine <= end; i += kLine) {
        (__builtin_prefetch(reinterpret_cast<const char*>(weight + r * stream + i) + kAheadBytes),
         ...);
        for (int64_t j = i; j < i + kLine; j += kLanes) {
          Add([&](int64_t k) { return Load(weight + k * stream + j); },
              [&](int64_t k) { return Vec::loadu(x + k * m.size + j); }, sums, outputs, rows);
        }
      }
      for (; i < end; i += kLanes) {
        const First part{std::min<int64_t>(end - i, kLanes)};
        Add([&](int64_t k) { return Load(weight + k * stream + i, part); },
            [&](int64_t k) { return P::LoadAcc(x + k * m.size + i, part).a; }, sums, outputs, rows);
      }
      ((totals[sum] = totals[sum] + sums[sum]), ...);
    }
    Y* y = Out<Y>(m.y, first * m.outputs + output);
    const T* bias = m.bias == nullptr ? nullptr : In<T>(m.bias, output);
    const T* residual =
        m.residual == nullptr ? nullptr : In<T>(m.residual, first * m.outputs + output);
    StoreTotals<kSums>(totals, [&](int i, Acc total) {
      const int64_t column = i % kOutputs * apart;
      if constexpr (kIsInt8) total *= m.scales[output + column];
      if (bias != nullptr) total += static_cast<Acc>(bias[column]);
      const int64_t place = i / kOutputs * m.outputs + column;
      y[place] = static_cast<Y>(total);
      if (residual != nullptr)
        y[place] = static_cast<Y>(static_cast<Acc>(y[place]) + static_cast<Acc>(residual[place]));
    });
  }

  template <int outputs, int rows>
  static void RunBlock(const LinearRows& m, int64_t output, int64_t apart, int64_t first) {
    RunBlock(m, output, apart, first, std::make_index_sequence<outputs>(),
             std::make_index_sequence<rows>(), std::make_index_sequence<outputs * rows>());
  }

  // All rows, in passes of equal size. The second one finds the weight in the cache.
  template <int outputs>
  static void RunRows(const LinearRows& m, int64_t output, int64_t apart) {
    const int64_t passes = (m.rows + kRowsOfPass - 1) / kRowsOfPass;
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t first = m.rows * pass / passes, end = m.rows * (pass + 1) / passes;
      switch (end - first) {
        case 1: RunBlock<outputs, 1>(m, output, apart, first); break;
        case 2:
          if constexpr (outputs * 2 <= kMostSums) RunBlock<outputs, 2>(m, output, apart, first);
          break;
        case 3:
          if constexpr (outputs * 3 <= kMostSums) RunBlock<outputs, 3>(m, output, apart, first);
          break;
        default:
          if constexpr (outputs * 4 <= kMostSums) RunBlock<outputs, 4>(m, output, apart, first);
      }
    }
  }

  // Divides the outputs into `streams` parts; fewer streams take the rest.
  template <int streams>
  static void RunStreams(const LinearRows& m, int64_t begin, int64_t end) {
    const int64_t apart = (end - begin) / streams;
    for (int64_t i = 0; i < apart; ++i) RunRows<streams>(m, begin + i, apart);
    if constexpr (streams > 1) RunStreams<streams / 2>(m, begin + apart * streams, end);
  }

  static void Run(const LinearRows& m, int64_t begin, int64_t end) {
    const int64_t passes = (m.rows + kRowsOfPass - 1) / kRowsOfPass;
    switch ((m.rows + passes - 1) / passes) {
      case 1: return RunStreams<8>(m, begin, end);
      case 2:
      case 3: return RunStreams<4>(m, begin, end);
      default: return RunStreams<3>(m, begin, end);
    }
  }
};

}  // namespace lockstep::kernels::CPU_CAPABILITY

#endif  // LOCKSTEP_KERNELS_GENERATION_FEW_ROWS_H_
