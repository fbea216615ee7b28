// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD, and
// kernels/rows_cpu.cc on why it includes as little as it can.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ATen/cpu/vec/functional.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "kernels/float8/cast_loops.h"
#include "kernels/float8/rounding.h"

namespace lockstep::kernels::float8::CPU_CAPABILITY {
namespace {

// Numbers that are widened at once; a multiple of every vector's size.
constexpr int64_t kBlock = 256;

template <typename T>
const T* Row(const Matrix& m, int64_t row) {
  return static_cast<const T*>(m.x) + row * m.stride;
}

// Magnitudes are compared as integers: their order is the same, and no NaN gets lost.
template <typename T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

template <typename T>
Bits<T> MagnitudeBits(const T* x) {
  Bits<T> bits;
  memcpy(&bits, x, sizeof(bits));
  return bits & (std::numeric_limits<Bits<T>>::max() >> 1);
}

template <typename T>
void AmaxOfRows(const Matrix& m, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = Row<T>(m, row);
    Bits<T> most = 0;
    for (int64_t i = 0; i < m.columns; ++i) {
      const Bits<T> bits = MagnitudeBits(x + i);
      most = bits > most ? bits : most;
    }
    m.amax[row] = most;
  }
}

template <typename T>
void AmaxOfColumns(const Matrix& m, int64_t begin, int64_t end) {
  Bits<T> most[kBlock];
  for (int64_t column = begin; column < end; column += kBlock) {
    const int64_t count = std::min(kBlock, end - column);
    memset(most, 0, sizeof(most));
    for (int64_t row = 0; row < m.rows; ++row) {
      const T* x = Row<T>(m, row) + column;
      for (int64_t i = 0; i < count; ++i) {
        const Bits<T> bits = MagnitudeBits(x + i);
        most[i] = bits > most[i] ? bits : most[i];
      }
    }
    std::copy_n(most, count, m.amax + column);
  }
}

// `count` is at most kBlock.
template <typename T>
void Widen(const T* x, int64_t count, float* to) {
  if constexpr (std::is_same_v<T, float>) {
    memcpy(to, x, count * sizeof(float));
  } else {
    using Stored = at::vec::Vectorized<T>;
    for (int64_t i = 0; i < count; i += Stored::size()) {
      const int64_t left = count - i;
      const auto [first, second] = at::vec::convert_to_float<T>(
          left >= Stored::size() ? Stored::loadu(x + i)
                                 : Stored::loadu(x + i, static_cast<int16_t>(left)));
      first.store(to + i);
      second.store(to + i + first.size());
    }
  }
}

template <typename T, typename Round>
void CastRows(const Matrix& m, int64_t begin, int64_t end, const Round& round) {
  alignas(64) float block[kBlock];
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t column = 0; column < m.columns; column += kBlock) {
      const int64_t count = std::min(kBlock, m.columns - column);
      Widen(Row<T>(m, row) + column, count, block);
      uint8_t* y = m.y + row * m.columns + column;
      const float* scale = m.scale + row * m.scale_row_stride;
      if (m.scale_column_stride == 0) {
        const float one = *scale;
        for (int64_t i = 0; i < count; ++i) y[i] = round(block[i] * one);
      } else {
        for (int64_t i = 0; i < count; ++i) y[i] = round(block[i] * scale[column + i]);
      }
    }
  }
}

template <typename T>
void Cast(const Matrix& m, int64_t begin, int64_t end) {
  if (m.is_e5m2) {
    CastRows<T>(m, begin, end, [](float x) { return ToE5m2(x); });
  } else {
    CastRows<T>(m, begin, end, [](float x) { return ToE4m3(x); });
  }
}

// Calls the loop for the matrix's dtype.
#define LOCKSTEP_BY_DTYPE(Loop)                                      \
  [](const Matrix& m, int64_t begin, int64_t end) {                  \
    if (m.dtype == at::kFloat) Loop<float>(m, begin, end);           \
    if (m.dtype == at::kHalf) Loop<at::Half>(m, begin, end);         \
    if (m.dtype == at::kBFloat16) Loop<at::BFloat16>(m, begin, end); \
  }

}  // namespace

extern const CastLoops kCastLoops;
const CastLoops kCastLoops = {
    .amax_of_rows = LOCKSTEP_BY_DTYPE(AmaxOfRows),
    .amax_of_columns = LOCKSTEP_BY_DTYPE(AmaxOfColumns),
    .cast = LOCKSTEP_BY_DTYPE(Cast),
};

}  // namespace lockstep::kernels::float8::CPU_CAPABILITY
