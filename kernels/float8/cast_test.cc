// Casts to float8 against ATen's operators, bit for bit. BUILD runs these tests on each instruction
// set.

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float8/float8.h"
#include "tests/support/message_of.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using Dim = std::optional<int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr at::ScalarType kFormats[] = {at::kFloat8_e4m3fn, at::kFloat8_e5m2};
constexpr Dim kDims[] = {Dim(), Dim(0), Dim(1)};

double LargestOf(at::ScalarType format) { return format == at::kFloat8_e4m3fn ? 448 : 57344; }

// The steps of torchao's tensor_to_scale and hp_tensor_and_scale_to_float8.
Float8 ByAten(const at::Tensor& x, at::ScalarType format, Dim dim, bool power_of_2) {
  const double largest = LargestOf(format);
  const at::Tensor magnitude = x.abs();
  const at::Tensor amax =
      dim.has_value() ? magnitude.amax({*dim}, /*keepdim=*/true) : magnitude.max();
  at::Tensor scale = (largest / amax.to(at::kDouble).clamp_min(1e-12)).to(at::kFloat);
  if (power_of_2) scale = at::exp2(at::floor(at::log2(scale)));
  return {(x.to(at::kFloat) * scale).clamp(-largest, largest).to(format), scale};
}

at::Tensor Bytes(const at::Tensor& values) {
  const at::Tensor bytes = values.view(at::kByte);
  // The sign of NaN says nothing.
  return at::where(values.to(at::kFloat).isnan(), at::full_like(bytes, 0x7f), bytes);
}

void ExpectEqual(const Float8& actual, const Float8& expected) {
  EXPECT_EQ(actual.values.scalar_type(), expected.values.scalar_type());
  EXPECT_TRUE(actual.values.is_contiguous());
  EXPECT_EQ(actual.scale.sizes(), expected.scale.sizes());
  EXPECT_TRUE(at::equal(Bytes(actual.values), Bytes(expected.values)));
  EXPECT_TRUE(at::allclose(actual.scale, expected.scale, 0, 0, /*equal_nan=*/true));
}

TEST(CastToFloat8, RoundsEveryBfloat16AndFloat16AsAtenDoes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor all = at::arange(-32768, 32768, at::kShort).view(dtype);
    for (const at::ScalarType format : kFormats) {
      const double largest = LargestOf(format);
      // The scale of these is 1.
      const at::Tensor fits = all.index({all.abs().le(largest)}).view({1, -1});
      ASSERT_GT(fits.numel(), 30000);
      const Float8 cast = CastToFloat8(fits, format, Dim());
      EXPECT_EQ(cast.scale.item<float>(), 1);
      ExpectEqual(cast, ByAten(fits, format, Dim(), false));
      // Rows of one exponent each, at every scale; with infinities and NaNs.
      for (const int64_t size : {64, 128, 1024}) {
        for (const Dim dim : kDims) {
          for (const bool power_of_2 : {false, true}) {
            const at::Tensor rows = all.view({-1, size});
            ExpectEqual(CastToFloat8(rows, format, dim, power_of_2),
                        ByAten(rows, format, dim, power_of_2));
          }
        }
      }
    }
  }
}

TEST(CastToFloat8, RoundsFloat32AsAtenDoes) {
  // Every 977th float32 that is not larger than the format's numbers.
  const at::Tensor all =
      at::arange(-(int64_t{1} << 31), int64_t{1} << 31, 977, at::kLong).to(at::kInt);
  for (const at::ScalarType format : kFormats) {
    const at::Tensor numbers = all.view(at::kFloat);
    at::Tensor fits = numbers.index({numbers.abs().le(LargestOf(format))});
    fits = at::cat({fits, at::full({1}, LargestOf(format))}).view({1, -1});
    ASSERT_GT(fits.numel(), 2'000'000);
    const Float8 cast = CastToFloat8(fits, format, Dim());
    EXPECT_EQ(cast.scale.item<float>(), 1);
    EXPECT_TRUE(at::equal(Bytes(cast.values), Bytes(fits.to(format))));
  }
}

TEST(CastToFloat8, AgreesWithAtenAtEverySizeAndStride) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [rows, columns] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {1, 1}, {1, 7}, {3, 5}, {17, 33}, {33, 257}, {300, 70}, {40, 1030}, {1030, 600}}) {
      const at::Tensor wide =
          (at::randn({rows, 2 * columns}) * at::randn({rows, 1}).exp()).to(dtype);
      for (const at::Tensor& x :
           {wide.narrow(1, columns / 2, columns), wide.slice(1, 0, 2 * columns, 2),
            wide.t().narrow(0, 0, columns), wide.narrow(0, 0, 1).expand({5, 2 * columns}),
            wide.narrow(1, 0, 1).expand({rows, columns})}) {
        for (const at::ScalarType format : kFormats) {
          for (const Dim dim : kDims) {
            const bool power_of_2 = rows % 2 == 0;
            ExpectEqual(CastToFloat8(x, format, dim, power_of_2),
                        ByAten(x, format, dim, power_of_2));
          }
        }
      }
    }
  }
}

TEST(CastToFloat8, TakesMatricesWithoutNumbers) {
  for (const auto& [rows, columns] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{0, 16}, {16, 0}, {0, 0}}) {
    for (const Dim dim : kDims) {
      const Float8 cast = CastToFloat8(at::empty({rows, columns}), at::kFloat8_e4m3fn, dim);
      EXPECT_EQ(cast.values.sizes(), at::IntArrayRef({rows, columns}));
      EXPECT_EQ(cast.scale.numel(), dim == 0 ? columns : dim == 1 ? rows : 1);
      EXPECT_TRUE(cast.scale.eq(static_cast<float>(448 / 1e-12)).all().item<bool>());
    }
  }
}

TEST(CastToFloat8, ClampsAmaxFromBelow) {
  for (const double magnitude : {0.0, 1e-30, 0.9e-12, 1.1e-12}) {
    const at::Tensor x = at::full({2, 3}, magnitude);
    for (const Dim dim : kDims)
      ExpectEqual(CastToFloat8(x, at::kFloat8_e5m2, dim), ByAten(x, at::kFloat8_e5m2, dim, false));
  }
}

TEST(CastToFloat8, DoesNotHideInfinityOrNan) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const double bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (const bool power_of_2 : {false, true}) {
        at::Tensor x = at::randn({3, 40}).to(dtype);
        x[1][38] = bad;
        const auto dequantised = [&](Dim dim) {
          const Float8 cast = CastToFloat8(x, at::kFloat8_e4m3fn, dim, power_of_2);
          ExpectEqual(cast, ByAten(x, at::kFloat8_e4m3fn, dim, power_of_2));
          return (cast.values.to(at::kFloat) * cast.scale.reciprocal()).isnan();
        };
        EXPECT_TRUE(dequantised(Dim()).all().item<bool>());
        EXPECT_TRUE(at::equal(dequantised(1),
                              at::tensor({0, 1, 0}).to(at::kBool).view({3, 1}).expand({3, 40})));
        EXPECT_TRUE(at::equal(dequantised(0), at::arange(40).eq(38).expand({3, 40})));
      }
    }
  }
}

TEST(CastToFloat8, RoundsScalesDownToPowersOf2) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({500, 8}) * at::randn({500, 1}).mul(8).exp();
  const at::Tensor any = CastToFloat8(x, at::kFloat8_e4m3fn, 1).scale;
  const at::Tensor powers = CastToFloat8(x, at::kFloat8_e4m3fn, 1, true).scale;
  EXPECT_TRUE(at::equal(powers.log2(), powers.log2().round()));
  EXPECT_TRUE(powers.le(any).all().item<bool>());
  EXPECT_TRUE((powers * 2).gt(any).all().item<bool>());
}

TEST(CastToFloat8, HasTheSameBitsForAnyNumberOfThreads) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({513, 1111});
  const int before = at::get_num_threads();
  for (const Dim dim : kDims) {
    at::set_num_threads(1);
    const Float8 one = CastToFloat8(x, at::kFloat8_e4m3fn, dim);
    at::set_num_threads(3);
    ExpectEqual(CastToFloat8(x, at::kFloat8_e4m3fn, dim), one);
  }
  at::set_num_threads(before);
}

TEST(Transposed, PadsRowsWithZeros) {
  at::manual_seed(4);
  for (const at::ScalarType format : kFormats) {
    for (const int64_t rows : {0, 1, 15, 16, 33}) {
      const Float8 cast = CastToFloat8(at::randn({rows, 24}), format, 0);
      const Float8 transposed = Transposed(cast);
      const int64_t padded = transposed.values.size(1);
      EXPECT_EQ(padded, (rows + 15) / 16 * 16);
      EXPECT_TRUE(transposed.values.is_contiguous());
      EXPECT_EQ(transposed.scale.sizes(), at::IntArrayRef({24, 1}));
      const at::Tensor bytes = transposed.values.view(at::kByte);
      EXPECT_TRUE(at::equal(bytes.narrow(1, 0, rows).t(), cast.values.view(at::kByte)));
      EXPECT_EQ(bytes.narrow(1, rows, padded - rows).count_nonzero().item<int64_t>(), 0);
    }
  }
}

TEST(CastBoth, IsACastByRowsAndATransposedOneByColumns) {
  at::manual_seed(5);
  for (const auto& [rows, columns] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{1, 5}, {33, 257}, {0, 16}}) {
    const at::Tensor x = at::randn({rows, columns}) * at::randn({rows, 1}).exp();
    for (const at::ScalarType format : kFormats) {
      for (const Dim dim : kDims)
        ExpectEqual(CastTransposed(x, format, dim, true),
                    Transposed(CastToFloat8(x, format, dim, true)));
      for (const bool by_row : {false, true}) {
        const Float8Both both = CastBoth(x, format, by_row, /*power_of_2=*/false);
        ExpectEqual(both.as_is, CastToFloat8(x, format, by_row ? Dim(1) : Dim()));
        ExpectEqual(both.transposed, Transposed(CastToFloat8(x, format, by_row ? Dim(0) : Dim())));
      }
    }
  }
}

TEST(CastPartToFloat8, PartsAreThoseOfTheWhole) {
  at::manual_seed(5);
  for (const at::ScalarType dtype : kDtypes) {
    for (const double odd : {0.0, 3e4, kInfinity, kNan}) {
      const at::Tensor x = (at::randn({37, 1111}) * 3).to(dtype);
      x[20][7] = odd;
      for (const at::ScalarType format : kFormats) {
        const Float8 whole = CastToFloat8(x, format, std::nullopt);
        const at::Tensor scale = Float8Scale(x.abs().max(), format);
        const at::Tensor parts = at::empty({x.numel()}, at::TensorOptions().dtype(format));
        const int64_t cut = 18'001;  // within a row
        const at::Tensor flat = x.view({-1});
        CastPartToFloat8(flat.narrow(0, 0, cut), scale, parts.narrow(0, 0, cut));
        CastPartToFloat8(flat.narrow(0, cut, x.numel() - cut), scale,
                         parts.narrow(0, cut, x.numel() - cut));
        ExpectEqual({parts.view(x.sizes()), scale}, whole);
      }
    }
  }
  EXPECT_THAT(MessageOf([] {
                CastPartToFloat8(at::ones({4}), at::ones({2}),
                                 at::empty({4}, at::TensorOptions().dtype(at::kFloat8_e5m2)));
              }),
              HasSubstr("scale one float32 number"));
}

TEST(CastToFloat8, GivesShapesOfMetaTensors) {
  const at::Tensor x = at::empty({3, 5}, at::device(at::kMeta).dtype(at::kBFloat16));
  const Float8 cast = CastToFloat8(x, at::kFloat8_e5m2, 0);
  EXPECT_TRUE(cast.values.is_meta());
  EXPECT_EQ(cast.values.scalar_type(), at::kFloat8_e5m2);
  EXPECT_EQ(cast.scale.sizes(), at::IntArrayRef({1, 5}));
  const Float8Both both = CastBoth(x, at::kFloat8_e5m2, /*by_row=*/true);
  EXPECT_TRUE(both.transposed.values.is_meta());
  EXPECT_EQ(both.transposed.values.sizes(), at::IntArrayRef({5, 16}));
  EXPECT_EQ(both.as_is.scale.sizes(), at::IntArrayRef({3, 1}));
}

TEST(CastToFloat8, RefusesWhatItCannotCast) {
  const at::Tensor x = at::ones({2, 2});
  const auto message = [](const at::Tensor& given, at::ScalarType format, Dim dim) {
    return MessageOf([&] { CastToFloat8(given, format, dim); });
  };
  EXPECT_THAT(message(at::ones({2}), at::kFloat8_e5m2, Dim()),
              HasSubstr("must be a matrix, got [2]"));
  EXPECT_THAT(message(x.to(at::kDouble), at::kFloat8_e5m2, Dim()), HasSubstr("got Double"));
  EXPECT_THAT(message(x, at::kHalf, Dim()), HasSubstr("the format must be"));
  EXPECT_THAT(message(x, at::kFloat8_e5m2, 2), HasSubstr("dim must be 0"));
}

}  // namespace
}  // namespace lockstep::kernels
