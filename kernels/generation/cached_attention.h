// The loop of attention in generation: one new token of each sequence looks at the keys and values
// of the tokens before it, which a cache holds. Private to generation_cpu.cc, which is compiled
// once for each instruction set.
//
// A key head's columns are read once for up to four of the query heads that share it. The order of
// additions depends neither on the thread's part nor on other sequences.

#ifndef LOCKSTEP_KERNELS_GENERATION_CACHED_ATTENTION_H_
#define LOCKSTEP_KERNELS_GENERATION_CACHED_ATTENTION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "ATen/cpu/vec/functional.h"
#include "kernels/generation/few_rows.h"
#include "kernels/generation/generation.h"
#include "kernels/loops.h"
#include "kernels/pack.h"

namespace lockstep::kernels::CPU_CAPABILITY {

template <typename Machine, typename T>
struct CachedAttention {
  using P = Pack<T>;
  using Acc = typename P::Acc;
  using Accs = Pack<Acc>;
  using Vec = typename P::Vec;

  // Columns whose products are added up one after the other; the sums of such parts are then added.
  static constexpr int64_t kColumnsOfSum = 512;
  // Query heads that one pass over the values takes.
  static constexpr int64_t kRowsOfPass = 4;

  static Acc Largest(const Acc* numbers, int64_t count) {
    Vec largest(-std::numeric_limits<Acc>::infinity());
    int64_t i = 0;
    for (; i + Vec::size() <= count; i += Vec::size())
      largest = at::vec::maximum(largest, Vec::loadu(numbers + i));
    Acc lanes[Vec::size()];
    largest.store(lanes);
    Acc result = lanes[0];
    for (const Acc lane : lanes) result = std::max(result, lane);
    for (; i < count; ++i) result = std::max(result, numbers[i]);
    return result;
  }

  // Turns scores into weights: exp(scale * score + mask - the largest of these). Returns their sum.
  static Acc Weights(const Machine& machine, Acc* scores, const Acc* mask, int64_t count,
                     double scale) {
    const Accs scales(static_cast<Acc>(scale));
    machine.template ForEachPack<Acc>(count, [&](int64_t i, auto amount) {
      Accs score = Accs::Load(scores + i, amount) * scales;
      if (mask != nullptr) score = score + Accs::Load(mask + i, amount);
      score.Store(scores + i, amount);
    });
    const Accs largest(Largest(scores, count));
    Accs sums(0);
    machine.template ForEachPack<Acc>(count, [&](int64_t i, auto amount) {
      Exp(Accs::Load(scores + i, amount) - largest).Store(scores + i, amount);
      sums = sums + Accs::Load(scores + i, amount);  // 0 after the last
    });
    return sums.Total();
  }

  // Writes some numbers of the results of sizeof...(row) query heads: weights values / sum.
  template <typename Amount, size_t... row>
  static void AddValues(const T* values, int64_t size, const Acc* weights, int64_t count,
                        const Acc* sums, Amount amount, std::index_sequence<row...>, T* y) {
    P totals[] = {(static_cast<void>(row), P(0))...};
    for (int64_t column = 0; column < count;) {
      const int64_t end = std::min(column + kColumnsOfSum, count);
      P parts[] = {(static_cast<void>(row), P(0))...};
      for (; column < end; ++column) {
        const P value = P::Load(values + column * size, amount);
        ((parts[row] = P(weights[row * count + column]) * value + parts[row]), ...);
      }
      ((totals[row] = totals[row] + parts[row]), ...);
    }
    ((totals[row] / P(sums[row])).Store(y + row * size, amount), ...);
  }

  template <int64_t rows>
  static void AddValues(const Machine& machine, const T* values, int64_t size, const Acc* weights,
                        int64_t count, const Acc* sums, T* y) {
    machine.template ForEachPack<T>(size, [&](int64_t i, auto amount) {
      AddValues(values + i, size, weights, count, sums, amount, std::make_index_sequence<rows>(),
                y + i);
    });
  }

  static void RunHead(const Machine& machine, const CachedAttentionRows& m, int64_t index) {
    const int64_t sequence = index / m.kv_heads, head = index % m.kv_heads;
    T* keys = Out<T>(m.keys, sequence * m.keys_sequence_stride + head * m.keys_head_stride);
    T* values = Out<T>(m.values, sequence * m.values_sequence_stride + head * m.values_head_stride);
    memcpy(keys + m.column * m.size, In<T>(m.k, index * m.size), m.size * sizeof(T));
    memcpy(values + m.column * m.size, In<T>(m.v, index * m.size), m.size * sizeof(T));

    const int64_t count = m.column + 1 - m.first;
    Acc* weights = Out<Acc>(m.weights, index * m.group * count);
    const LinearRows scores = {
        .dtype = m.dtype,
        .rows = m.group,
        .size = m.size,
        .outputs = count,
        .x = In<Acc>(m.q, index * m.group * m.size),
        .weight = keys + m.first * m.size,
        .weight_stride = m.size,
        .scales = nullptr,
        .bias = nullptr,
        .residual = nullptr,
        .y = weights,
    };
    FewRows<T, Acc>::Run(scores, 0, count);

    const Acc* mask =
        m.mask == nullptr ? nullptr : In<Acc>(m.mask, sequence * m.mask_stride + m.first);
    T* y = Out<T>(m.y, index * m.group * m.size);
    for (int64_t row = 0; row < m.group; row += kRowsOfPass) {
      const int64_t rows = std::min(kRowsOfPass, m.group - row);
      Acc sums[kRowsOfPass];
      for (int64_t i = 0; i < rows; ++i)
        sums[i] = Weights(machine, weights + (row + i) * count, mask, count, m.scale);
      const auto add = [&](auto number) {
        AddValues<decltype(number)::value>(machine, values + m.first * m.size, m.size,
                                           weights + row * count, count, sums, y + row * m.size);
      };
      if (rows == 1) add(std::integral_constant<int64_t, 1>());
      if (rows == 2) add(std::integral_constant<int64_t, 2>());
      if (rows == 3) add(std::integral_constant<int64_t, 3>());
      if (rows == 4) add(std::integral_constant<int64_t, 4>());
    }
  }

  static void Run(const Machine& machine, const CachedAttentionRows& m, int64_t begin,
                  int64_t end) {
    for (int64_t index = begin; index < end; ++index) RunHead(machine, m, index);
  }
};

}  // namespace lockstep::kernels::CPU_CAPABILITY

#endif  // LOCKSTEP_KERNELS_GENERATION_CACHED_ATTENTION_H_
