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

// What a cast of x should be, by plain loops.
template <typename T>
struct Expected {
  const Memory<T>& x;
  int64_t rows, columns, stride;
  ScaleOf scale_of;
  bool is_e5m2;
  std::vector<float> scale;

  Expected(const Memory<T>& given, int64_t num_rows, int64_t num_columns, int64_t row_stride,
           ScaleOf of, bool e5m2, bool power_of_2)
      : x(given),
        rows(num_rows),
        columns(num_columns),
        stride(row_stride),
        scale_of(of),
        is_e5m2(e5m2),
        scale(Scales(of, num_rows, num_columns), 0) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        float& most = scale[Place(row, column)];  // NaN, once there is one
        const float magnitude = std::abs(At(row, column));
        if (!std::isnan(most) && !(magnitude <= most)) most = magnitude;
      }
    }
    for (float& one : scale) one = float8::ScaleOf(one, is_e5m2 ? 57344 : 448, power_of_2);
  }

  static int64_t Scales(ScaleOf of, int64_t rows, int64_t columns) {
    return of == ScaleOf::kMatrix ? 1 : of == ScaleOf::kRows ? rows : columns;
  }
  int64_t Place(int64_t row, int64_t column) const {
    return scale_of == ScaleOf::kMatrix ? 0 : scale_of == ScaleOf::kRows ? row : column;
  }
  float At(int64_t row, int64_t column) const {
    return static_cast<float>(x[row * stride + column]);
  }

  bool HasScales(const Memory<float>& actual) const {
    for (size_t i = 0; i < scale.size(); ++i)
      if (!(actual[i] == scale[i] || (std::isnan(actual[i]) && std::isnan(scale[i])))) return false;
    return true;
  }
  // The sign of NaN says nothing.
  bool IsByte(int64_t row, int64_t column, uint8_t actual) const {
    const float scaled = At(row, column) * scale[Place(row, column)];
    const int sign = std::isnan(scaled) ? 0x7f : 0xff;
    return ((actual ^ (is_e5m2 ? float8::ToE5m2(scaled) : float8::ToE4m3(scaled))) & sign) == 0;
  }
};

struct Case {
  int64_t rows, columns, stride;
  int64_t offset;  // of x, y and scale
  ScaleOf scale;
  bool is_e5m2, power_of_2;
  double bad = 1;  // a number in the matrix
};

// Numbers of very different size, and the bad one in the last row.
template <typename T>
void FillRandom(Memory<T>& x, const Case& one, std::mt19937& random) {
  std::normal_distribution<double> normal;
  x.Fill([&](int64_t) { return normal(random) * std::exp2(normal(random)); });
  x.data()[(one.rows - 1) * one.stride + one.columns / 2] = static_cast<T>(one.bad);
  x.ForbidGaps(one.columns, one.stride);
}

template <typename T>
void CheckCast(const Case& one, std::mt19937& random) {
  const auto [rows, columns, stride, offset, scale_of, is_e5m2, power_of_2, bad] = one;
  Memory<T> x("x", {.numbers = (rows - 1) * stride + columns, .offset = offset});
  FillRandom(x, one, random);
  const int64_t scales = Expected<T>::Scales(scale_of, rows, columns);
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
  const Expected<T> expected(x, rows, columns, stride, scale_of, is_e5m2, power_of_2);
  ASSERT_TRUE(expected.HasScales(scale));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      ASSERT_TRUE(expected.IsByte(row, column, y[row * columns + column])) << row << ", " << column;
}

// Which copies a cast writes. kBoth: with scales of rows, and of columns for the transposed one.
enum class Copies { kOneScale, kTransposedOneScale, kTransposedColumns, kBoth };

template <typename T>
void CheckTransposedCast(const Case& one, Copies copies, std::mt19937& random) {
  const auto [rows, columns, stride, offset, unused, is_e5m2, power_of_2, bad] = one;
  Memory<T> x("x", {.numbers = (rows - 1) * stride + columns, .offset = offset});
  FillRandom(x, one, random);
  const bool is_one = copies == Copies::kOneScale || copies == Copies::kTransposedOneScale;
  const bool has_both = copies == Copies::kOneScale || copies == Copies::kBoth;
  const int64_t scales = is_one ? 1 : copies == Copies::kBoth ? rows : 0;
  const int64_t padded = (rows + 15) / 16 * 16;
  Memory<uint32_t> amax("amax", {.numbers = scales});
  Memory<uint32_t> amax_t("amax_t", {.numbers = is_one ? 0 : columns});
  amax.Fill([](int64_t) { return 0; });
  amax_t.Fill([](int64_t) { return 0; });
  Memory<float> scale("scale", {.numbers = scales, .offset = offset});
  Memory<float> scale_t("scale_t", {.numbers = is_one ? 0 : columns, .offset = offset});
  Memory<uint8_t> y("y", {.numbers = has_both ? rows * columns : 0, .offset = offset});
  Memory<uint8_t> y_t("y_t", {.numbers = columns * padded, .offset = offset});
  kFloat8CastsOfCuda.cast_transposed({.dtype = c10::CppTypeToScalarType<T>::value,
                                      .rows = rows,
                                      .columns = columns,
                                      .stride = stride,
                                      .x = x.input(),
                                      .amax = amax.in_out(),
                                      .scale = scale.output(),
                                      .scale_row_stride = copies == Copies::kBoth ? 1 : 0,
                                      .scale_column_stride = 0,
                                      .is_e5m2 = is_e5m2,
                                      .y = has_both ? y.output() : nullptr},
                                     {.amax = amax_t.in_out(),
                                      .scale = is_one ? scale.data() : scale_t.output(),
                                      .scale_stride = is_one ? 0 : 1,
                                      .padded = padded,
                                      .y = y_t.output()},
                                     power_of_2);

  ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
  for (emulator::Bytes* bytes : {&scale.bytes(), &scale_t.bytes(), &y.bytes(), &y_t.bytes()})
    EXPECT_EQ(bytes->num_unwritten(), 0);
  const Expected<T> as_is(x, rows, columns, stride, is_one ? ScaleOf::kMatrix : ScaleOf::kRows,
                          is_e5m2, power_of_2);
  const Expected<T> transposed(x, rows, columns, stride,
                               is_one ? ScaleOf::kMatrix : ScaleOf::kColumns, is_e5m2, power_of_2);
  if (scales > 0) {
    ASSERT_TRUE(as_is.HasScales(scale));
  }
  if (!is_one) {
    ASSERT_TRUE(transposed.HasScales(scale_t));
  }
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      ASSERT_TRUE(transposed.IsByte(row, column, y_t[column * padded + row]))
          << row << ", " << column;
      if (!has_both) continue;
      ASSERT_TRUE(as_is.IsByte(row, column, y[row * columns + column])) << row << ", " << column;
    }
    for (int64_t row = rows; row < padded; ++row) ASSERT_EQ(y_t[column * padded + row], 0);
  }
}

constexpr struct {
  int64_t rows, columns;
} kShapes[] = {{1, 1},  {3, 5},   {33, 257}, {40, 130}, {9, 1030}, {515, 24},
               {2, 64}, {17, 31}, {2, 4096}, {1, 9000}, {1030, 9}};
constexpr Copies kCopies[] = {Copies::kOneScale, Copies::kTransposedOneScale,
                              Copies::kTransposedColumns, Copies::kBoth};

TEST(Float8OfCuda, CastsHaveTheBitsOfTheCpu) {
  std::mt19937 random(1);
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

TEST(Float8OfCuda, BothCopiesHaveTheBitsOfTheCpu) {
  std::mt19937 random(4);
  for (const auto& shape : kShapes) {
    for (const Copies copies : kCopies) {
      ForEachDtype([&](auto number) {
        const int64_t pad = std::vector<int64_t>{0, 0, 8, 3}[random() % 4];
        const int64_t offset = std::vector<int64_t>{0, 0, 1, 8}[random() % 4];
        SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " + " << pad
                                        << ", offset " << offset);
        CheckTransposedCast<decltype(number)>(
            {shape.rows, shape.columns, shape.columns + pad, offset, ScaleOf::kMatrix,
             random() % 2 == 0, random() % 2 == 0},
            copies, random);
      });
    }
  }
  for (const double bad : std::initializer_list<double>{INFINITY, -INFINITY, NAN, 0x1p-30})
    for (const Copies copies : kCopies)
      CheckTransposedCast<at::BFloat16>({3, 40, 40, 0, ScaleOf::kMatrix, false, true, bad}, copies,
                                        random);
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

// One pass finds all magnitudes, and one writes both copies.
TEST(Float8OfCuda, BothCopiesNeedTwoPassesOverX) {
  constexpr int64_t kRows = 128, kColumns = 512, kPacks = kRows * kColumns / kPackSize;
  constexpr int64_t kThreadsOfTiles = kRows / kTile * (kColumns / kTile) * kThreads;
  // A thread of a tile loads the scales of its columns, or the one of all, and that of each row.
  const struct {
    Copies copies;
    int64_t launches, loads, stored_bytes, atomics;
  } kExpected[] = {
      {Copies::kOneScale, 3, kThreadsOfTiles + 1, 16 * kPacks + 4, kRows},
      {Copies::kTransposedOneScale, 3, kThreadsOfTiles + 1, 8 * kPacks + 4, kRows},
      {Copies::kTransposedColumns, 3, 2 * kThreadsOfTiles + kColumns, 8 * kPacks + 4 * kColumns,
       kColumns},
      {Copies::kBoth, 4, 2 * kThreadsOfTiles + kPacks + kColumns + kRows,
       16 * kPacks + 4 * (kColumns + kRows), kColumns + kColumns / kAmaxColumns * kRows},
  };
  for (const auto& expected : kExpected) {
    emulator::ResetCounts();
    std::mt19937 random(5);
    CheckTransposedCast<at::BFloat16>({kRows, kColumns, kColumns, 0, ScaleOf::kMatrix, false, true},
                                      expected.copies, random);

    const emulator::Counts counts = emulator::CountsSoFar();
    EXPECT_EQ(counts.launches, expected.launches);
    EXPECT_EQ(counts.loads, 2 * kPacks + expected.loads);  // 16 bytes of x each
    EXPECT_EQ(counts.stored_bytes, expected.stored_bytes);
    EXPECT_EQ(counts.atomics, expected.atomics);
  }
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
