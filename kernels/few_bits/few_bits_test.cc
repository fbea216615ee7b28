// 4-bit layers against a naive reading of the format. tests/models compares them with what
// bitsandbytes computes.

#include "kernels/few_bits/few_bits.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;

int64_t CeilOf(int64_t count, int64_t size) { return (count + size - 1) / size; }

FewBits Random(int64_t rows, int64_t columns, int64_t block, bool is_nested, bool is_fp4) {
  const int64_t blocks = CeilOf(rows * columns, block);
  FewBits matrix = {.packed = at::randint(256, {rows * columns / 2, 1}, at::kByte),
                    .absmax = at::rand({blocks}) * 3,
                    .nested_absmax = {},
                    .nested_map = {},
                    .rows = rows,
                    .columns = columns,
                    .block = block,
                    .nested_block = 8,
                    .type = is_fp4 ? FewBitsType::kFp4 : FewBitsType::kNf4};
  if (!is_nested) return matrix;
  matrix.absmax = at::randint(256, {blocks}, at::kByte);
  matrix.nested_absmax = at::rand({CeilOf(blocks, matrix.nested_block)});
  matrix.nested_map = at::linspace(-1, 1, 256);
  matrix.offset = 1.25;
  return matrix;
}

FewBits RandomInt8(int64_t rows, int64_t columns) {
  return {.packed = at::randint(-127, 128, {rows, columns}, at::kChar),
          .absmax = at::rand({rows}) * 3,
          .nested_absmax = {},
          .nested_map = {},
          .rows = rows,
          .columns = columns,
          .block = columns,
          .type = FewBitsType::kInt8};
}

// Returns the whole numbers, one after the other in float32, and then in `dtype`.
at::Tensor Naive(const FewBits& m, at::ScalarType dtype) {
  const float values[2][16] = {
      {-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F,
       -0.28444138169288635F, -0.18477343022823334F, -0.09105003625154495F, 0.0F,
       0.07958029955625534F, 0.16093020141124725F, 0.24611230194568634F, 0.33791524171829224F,
       0.44070982933044434F, 0.5626170039176941F, 0.7229568362236023F, 1.0F},
      {0.0F, 0.0625F / 12, 8.0F / 12, 1.0F, 4.0F / 12, 6.0F / 12, 2.0F / 12, 3.0F / 12, -0.0F,
       -0.0625F / 12, -8.0F / 12, -1.0F, -4.0F / 12, -6.0F / 12, -2.0F / 12, -3.0F / 12}};
  at::Tensor result = at::empty({m.rows * m.columns}, at::kFloat);
  for (int64_t i = 0; i < result.numel(); ++i) {
    if (m.type == FewBitsType::kInt8) {
      const float factor = m.absmax[i / m.columns].item<float>() * (1.0F / 127);
      result[i] = m.packed.view(-1)[i].item<float>() * factor;
      continue;
    }
    const int64_t byte = m.packed.view(-1)[i / 2].item<int64_t>(), b = i / m.block;
    float most = 0;
    if (m.nested_absmax.defined()) {
      most = m.nested_map[m.absmax[b].item<int64_t>()].item<float>() *
             m.nested_absmax[b / m.nested_block].item<float>();
      most += static_cast<float>(m.offset);
    } else {
      most = m.absmax[b].item<float>();
    }
    result[i] = values[m.type == FewBitsType::kFp4][i % 2 == 0 ? byte >> 4 : byte & 15] * most;
  }
  return result.to(dtype).view({m.rows, m.columns});
}

TEST(FewBits, HeaderExample) {
  const FewBits weight = Random(8, 16, 64, true, false);
  const at::Tensor x = at::randn({3, 16});

  const at::Tensor y = FewBitsLinear(x, weight, /*bias=*/std::nullopt);

  EXPECT_TRUE(at::equal(y, at::linear(x, Naive(weight, at::kFloat))));
}

TEST(FewBits, EveryFormatGivesTheBitsOfTheNaiveReading) {
  at::manual_seed(1);
  for (const bool is_fp4 : {false, true}) {
    for (const bool is_nested : {false, true}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        for (const int64_t block : {32, 64, 4096}) {
          // A last block that is whole, one that is not, one element pair, and none.
          for (const auto& [rows, columns] :
               {std::pair<int64_t, int64_t>{64, 64}, {7, 30}, {1, 2}, {0, 4}}) {
            const FewBits matrix = Random(rows, columns, block, is_nested, is_fp4);
            const at::Tensor expected = Naive(matrix, dtype);
            EXPECT_TRUE(at::equal(Dequantize(matrix, dtype), expected))
                << is_fp4 << is_nested << " " << dtype << " " << block << " " << rows;
            EXPECT_TRUE(at::equal(DequantizeByOperators(matrix, dtype), expected)) << rows;
          }
        }
      }
    }
  }
}

TEST(FewBits, Int8GivesTheBitsOfTheNaiveReading) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{5, 64}, {7, 35}, {3, 1}, {0, 4}, {2, 0}}) {
      FewBits matrix = RandomInt8(rows, columns);
      const at::Tensor expected = Naive(matrix, dtype);
      EXPECT_TRUE(at::equal(Dequantize(matrix, dtype), expected)) << dtype << rows;
      EXPECT_TRUE(at::equal(DequantizeByOperators(matrix, dtype), expected)) << dtype << rows;
      matrix.absmax = matrix.absmax.view(at::kInt);
      EXPECT_TRUE(at::equal(Dequantize(matrix, dtype), expected)) << dtype << rows;
    }
  }
}

TEST(FewBitsLinear, FewRowsOfInt8AgreeWithFloat64) {
  at::manual_seed(3);
  for (const auto& [dtype, tolerance] : {std::pair(at::kFloat, 1e-6), {at::kBFloat16, 4e-3}}) {
    for (const int64_t rows : {1, 2, 3, 4, 8, 9}) {
      for (const int64_t columns : {256, 1091}) {
        const FewBits weight = RandomInt8(37, columns);
        const at::Tensor x = at::randn({rows, columns}).to(dtype), bias = at::randn({37}).to(dtype);

        const at::Tensor y = FewBitsLinear(x, weight, bias);

        const at::Tensor wide = Dequantize(weight, at::kFloat).to(at::kDouble);
        const at::Tensor truth = at::linear(x.to(at::kDouble), wide, bias.to(at::kDouble));
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_LE(RelativeError(y, truth), tolerance) << dtype << " " << rows << " " << columns;
      }
    }
  }
}

TEST(FewBitsLinear, GradientsOfInt8AreThoseOfTheWholeWeight) {
  for (const int64_t rows : {1, 20}) {
    const FewBits weight = RandomInt8(24, 64);
    const at::Tensor x = at::randn({rows, 64}).requires_grad_(), dy = at::randn({rows, 24});

    FewBitsLinear(x, weight, std::nullopt).backward(dy);

    EXPECT_LE(RelativeError(x.grad(), at::mm(dy, Naive(weight, at::kFloat)).to(at::kDouble)), 1e-6);
  }
}

TEST(FewBits, BitsOfFloat32AsIntegersAreTheSameNumbers) {
  FewBits matrix = Random(16, 64, 64, true, false);
  const at::Tensor expected = Dequantize(matrix, at::kFloat);

  matrix.nested_absmax = matrix.nested_absmax.view(at::kInt);
  matrix.nested_map = matrix.nested_map.view(at::kInt);

  EXPECT_TRUE(at::equal(Dequantize(matrix, at::kFloat), expected));
}

TEST(FewBitsLinear, ValuesAndGradientsAreThoseOfTheWholeWeight) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool trains_bias : {false, true}) {
      const FewBits weight = Random(24, 32, 64, true, false);
      const at::Tensor x = at::randn({2, 5, 32}, dtype).requires_grad_();
      const at::Tensor bias = at::randn({24}, dtype).requires_grad_(trains_bias);
      const at::Tensor dy = at::randn({2, 5, 24}, dtype);

      const at::Tensor y = FewBitsLinear(x, weight, bias);
      y.backward(dy);

      const at::Tensor whole = Naive(weight, dtype);
      EXPECT_TRUE(at::allclose(y, at::linear(x, whole, bias), 1e-2, 1e-2));
      EXPECT_TRUE(at::equal(x.grad(), at::matmul(dy, whole)));
      EXPECT_EQ(bias.grad().defined(), trains_bias);
      if (!trains_bias) continue;
      EXPECT_TRUE(at::allclose(bias.grad(), dy.view({10, 24}).sum(0), 1e-2, 1e-1));
    }
  }
}

TEST(FewBitsLinear, KeepsNothingButTheBytesForBackward) {
  const FewBits weight = Random(8, 32, 64, false, false);
  const at::Tensor x = at::randn({4, 32}).requires_grad_() * 2;
  const auto uses = [&] { return weight.packed.use_count(); };
  const auto before = uses(), uses_of_x = x.use_count();

  at::Tensor y = FewBitsLinear(x, weight, std::nullopt);

  EXPECT_GT(uses(), before);
  EXPECT_EQ(x.use_count(), uses_of_x);  // x is not needed: the weight has no gradient
  y.sum().backward();
  EXPECT_EQ(uses(), before);
}

TEST(FewBitsLinear, GradientsOfGradientsAreAnError) {
  const FewBits weight = Random(4, 16, 64, false, false);
  const at::Tensor x = at::randn({2, 16}).requires_grad_();
  const at::Tensor loss = FewBitsLinear(x, weight, std::nullopt).square().sum();

  EXPECT_THAT(MessageOf([&] {
                torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true,
                                      /*create_graph=*/true);
              }),
              HasSubstr("gradients of gradients are not supported"));
}

TEST(FewBits, ABlockMayBeLargerThanTheMatrix) {
  FewBits matrix = Random(8, 16, 256, true, false);
  const at::Tensor expected = Naive(matrix, at::kFloat);

  matrix.block = matrix.nested_block = std::numeric_limits<int64_t>::max() - 1;

  EXPECT_TRUE(at::equal(Dequantize(matrix, at::kFloat), expected));
  EXPECT_TRUE(at::equal(DequantizeByOperators(matrix, at::kFloat), expected));
}

TEST(FewBits, WhatDoesNotFitTogetherIsNamed) {
  const FewBits good = Random(8, 16, 64, true, false);
  const auto message = [&](auto change) {
    FewBits bad = good;
    change(bad);
    return MessageOf([&] { Dequantize(bad, at::kFloat); });
  };

  EXPECT_THAT(message([](FewBits& m) { m.columns = 18; }),
              HasSubstr("the packed weight must be 72 numbers in a row for a weight [8, 18]"));
  EXPECT_THAT(message([](FewBits& m) { m.block = 32; }),
              HasSubstr("absmax must be 4 numbers in a row"));
  EXPECT_THAT(message([](FewBits& m) { m.nested_absmax = m.nested_absmax.to(at::kBFloat16); }),
              HasSubstr("must be float32, got BFloat16"));
  EXPECT_THAT(message([](FewBits& m) { m.absmax = m.absmax.to(at::kFloat); }),
              HasSubstr("absmax must be uint8 with nested_absmax, got Float"));
  EXPECT_THAT(message([](FewBits& m) { m.packed = m.packed.to(at::kChar); }),
              HasSubstr("the packed weight must be uint8"));
  FewBits bytes = RandomInt8(4, 6);
  bytes.absmax = at::ones({6});
  EXPECT_THAT(MessageOf([&] { Dequantize(bytes, at::kFloat); }),
              HasSubstr("absmax must be 4 numbers in a row for a weight [4, 6] in blocks of 6"));
  bytes.packed = bytes.packed.to(at::kByte);
  EXPECT_THAT(MessageOf([&] { Dequantize(bytes, at::kFloat); }),
              HasSubstr("a weight in 8 bits must be int8"));
  EXPECT_THAT(MessageOf([&] {
                FewBitsLinear(at::zeros({3, 15}), good, std::nullopt);
              }),
              HasSubstr("x must be [..., 16], got [3, 15]"));
  EXPECT_THAT(MessageOf([&] {
                FewBitsLinear(at::zeros({3, 16}, at::kDouble), good, std::nullopt);
              }),
              HasSubstr("x must be float32, bfloat16 or float16, got Double"));
}

}  // namespace
}  // namespace lockstep::kernels
