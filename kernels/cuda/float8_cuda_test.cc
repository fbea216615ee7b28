// The kernels of float8_cuda.cu on the emulator: results bit for bit, and no fault in any access.
// Random shapes, strides and addresses; seeds are fixed.

#include "kernels/cuda/float8_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "c10/core/ScalarType.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/testing/dtypes.h"
#include "kernels/cuda/testing/emulator.h"
#include "kernels/float8/rounding.h"

namespace lockstep::kernels {
namespace {

using emulator::ForEachDtype;
using emulator::Memory;
using ::testing::IsEmpty;

enum class ScaleOf { kMatrix, kRows, kColumns };

struct Case {
  int64_t rows, columns, stride;
  int64_t offset;  // of x, y and scale
  ScaleOf scale;
  bool is_e5m2, power_of_2;
  double bad = 1;  // a number in the matrix
};

template <typename T>
void CheckCast(const Case& one, std::mt19937& random) {
  const auto [rows, columns, stride, offset, scale_of, is_e5m2, power_of_2, bad] = one;
  std::normal_distribution<double> normal;
  Memory<T> x("x", {.numbers = (rows - 1) * stride + columns, .offset = offset});
  x.Fill([&](int64_t) { return normal(random) * std::exp2(normal(random)); });
  x.data()[(rows - 1) * stride + columns / 2] = static_cast<T>(bad);
  x.ForbidGaps(columns, stride);
  const int64_t scales = scale_of == ScaleOf::kMatrix ? 1
                         : scale_of == ScaleOf::kRows ? rows
                                                      : columns;
  Memory<uint32_t> amax("amax", {.numbers = scale_of == ScaleOf::kRows ? 0 : scales});
  amax.Fill([](int64_t) { return 0; });
  Memory<float> scale("scale", {.numbers = scales, .offset = offset});
  Memory<uint8_t> y("y", {.numbers = rows * columns, .offset = offset});
  kFloat8CastsOfCuda.cast({.dtype = c10::CppTypeToScalarType<T>::value,
                           .rows = rows,
                           .columns = columns,
                           .stride = stride,
                           .x = x.input(),
                           .amax = amax.in_out(),
                           .scale = scale.output(),
                           .scale_row_stride = scale_of == ScaleOf::kRows ? 1 : 0,
                           .scale_column_stride = scale_of == ScaleOf::kColumns ? 1 : 0,
                           .is_e5m2 = is_e5m2,
                           .y = y.output()},
                          power_of_2);

  ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
  EXPECT_EQ(scale.bytes().num_unwritten() + y.bytes().num_unwritten(), 0);
  const auto place = [&](int64_t row, int64_t column) {
    return scale_of == ScaleOf::kMatrix ? 0 : scale_of == ScaleOf::kRows ? row : column;
  };
  const auto at = [&](int64_t row, int64_t column) {
    return static_cast<float>(x[row * stride + column]);
  };
  std::vector<float> expected(scales, 0);  // NaN, once there is one
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      float& most = expected[place(row, column)];
      if (!std::isnan(most) && !(std::abs(at(row, column)) <= most))
        most = std::abs(at(row, column));
    }
  }
  for (int64_t i = 0; i < scales; ++i) {
    expected[i] = float8::ScaleOf(expected[i], is_e5m2 ? 57344 : 448, power_of_2);
    ASSERT_TRUE(scale[i] == expected[i] || (std::isnan(scale[i]) && std::isnan(expected[i]))) << i;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const float scaled = at(row, column) * expected[place(row, column)];
      // The sign of NaN says nothing.
      const int sign = std::isnan(scaled) ? 0x7f : 0xff;
      ASSERT_EQ(y[row * columns + column] & sign,
                (is_e5m2 ? float8::ToE5m2(scaled) : float8::ToE4m3(scaled)) & sign)
          << row << ", " << column;
    }
  }
}

TEST(Float8OfCuda, CastsHaveTheBitsOfTheCpu) {
  std::mt19937 random(1);
  const struct {
    int64_t rows, columns;
  } kShapes[] = {{1, 1},  {3, 5},   {33, 257}, {40, 130}, {9, 1030}, {515, 24},
                 {2, 64}, {17, 31}, {2, 4096}, {1, 9000}, {1030, 9}};
  for (const auto& shape : kShapes) {
    for (const ScaleOf scale : {ScaleOf::kMatrix, ScaleOf::kRows, ScaleOf::kColumns}) {
      ForEachDtype([&](auto number) {
        const int64_t pad = std::vector<int64_t>{0, 0, 8, 3}[random() % 4];
        const int64_t offset = std::vector<int64_t>{0, 0, 1, 8}[random() % 4];
        SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " + " << pad
                                        << ", offset " << offset);
        CheckCast<decltype(number)>({shape.rows, shape.columns, shape.columns + pad, offset, scale,
                                     random() % 2 == 0, random() % 2 == 0},
                                    random);
      });
    }
  }
}

TEST(Float8OfCuda, DoesNotHideInfinityOrNan) {
  std::mt19937 random(2);
  for (const double bad : std::initializer_list<double>{INFINITY, -INFINITY, NAN, 0x1p-30}) {
    for (const ScaleOf scale : {ScaleOf::kMatrix, ScaleOf::kRows, ScaleOf::kColumns})
      CheckCast<at::BFloat16>({3, 40, 40, 0, scale, false, true, bad}, random);
  }
}

TEST(Float8OfCuda, TransposesAndPads) {
  for (const int64_t rows : {1, 15, 16, 33, 130}) {
    for (const int64_t columns : {1, 16, 24, 64, 131}) {
      for (const int64_t offset : {0, 1, 16}) {
        const int64_t padded = (rows + 15) / 16 * 16;
        Memory<uint8_t> from("from", {.numbers = rows * columns, .offset = offset});
        Memory<uint8_t> to("to", {.numbers = columns * padded, .offset = offset});
        from.Fill([](int64_t i) { return i * 7 % 251 + 1; });
        kFloat8CastsOfCuda.transpose(from.input(), rows, columns, padded, to.output());

        ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
        EXPECT_EQ(to.bytes().num_unwritten(), 0);
        for (int64_t column = 0; column < columns; ++column)
          for (int64_t row = 0; row < padded; ++row)
            ASSERT_EQ(to[column * padded + row], row < rows ? from[row * columns + column] : 0);
      }
    }
  }
}

// Accesses of the cast of a matrix of bfloat16.
emulator::Counts CountsOfCast(int64_t rows, int64_t columns, ScaleOf scale) {
  emulator::ResetCounts();
  std::mt19937 random(3);
  CheckCast<at::BFloat16>({rows, columns, columns, 0, scale, false, false}, random);
  return emulator::CountsSoFar();
}

TEST(Float8OfCuda, ABlockCallsAtomicMaxOnce) {
  EXPECT_EQ(CountsOfCast(1500, 64, ScaleOf::kMatrix).atomics, kAmaxBlocks);
  EXPECT_EQ(CountsOfCast(20, 2048, ScaleOf::kMatrix).atomics, 20);  // 4 warps each
  EXPECT_EQ(CountsOfCast(20, 64, ScaleOf::kRows).atomics, 0);
  EXPECT_EQ(CountsOfCast(2 * kAmaxRows, 64, ScaleOf::kColumns).atomics, 2 * 64);
}

TEST(Float8OfCuda, RowsAreScaledAndCastByOneKernel) {
  const emulator::Counts counts = CountsOfCast(20, 2048, ScaleOf::kRows);
  EXPECT_EQ(counts.launches, 1);
  EXPECT_EQ(counts.loads, 2 * 20 * 2048 / 8);  // 16 bytes each
  EXPECT_EQ(counts.loaded_bytes, 16 * counts.loads);
  EXPECT_EQ(counts.stores, 20 * 2048 / 8 + 20);  // 8 bytes each, and the scales
}

TEST(Float8OfCuda, AlignedTilesMove16BytesAtATime) {
  Memory<uint8_t> from("from", {.numbers = 128 * 192}), to("to", {.numbers = 192 * 128});
  from.Fill([](int64_t i) { return i % 251; });
  emulator::ResetCounts();
  kFloat8CastsOfCuda.transpose(from.input(), 128, 192, 128, to.output());

  EXPECT_EQ(emulator::CountsSoFar().loads, 128 * 192 / 16);
  EXPECT_EQ(emulator::CountsSoFar().stores, 128 * 192 / 16);
}

}  // namespace
}  // namespace lockstep::kernels
