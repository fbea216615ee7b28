// Attention to a cache against float64. BUILD runs these tests on each instruction set.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

struct Sizes {
  int64_t sequences, heads, kv_heads, columns, size;
};

// The inputs of a call. Columns from `column` on have not been written: they hold NaN.
struct Inputs {
  at::Tensor q, k, v, keys, values;

  Inputs(const Sizes& sizes, at::ScalarType dtype, int64_t column) {
    const auto random = [&](at::IntArrayRef shape) {
      return at::randn(shape, at::kDouble).to(dtype);
    };
    q = random({sizes.sequences, sizes.heads, sizes.size});
    k = random({sizes.sequences, sizes.kv_heads, sizes.size});
    v = random({sizes.sequences, sizes.kv_heads, sizes.size});
    const std::vector<int64_t> cache = {sizes.sequences, sizes.kv_heads, sizes.columns, sizes.size};
    keys = random(cache);
    values = random(cache);
    for (const at::Tensor& x : {keys, values})
      x.narrow(2, column, sizes.columns - column).fill_(std::numeric_limits<double>::quiet_NaN());
  }

  at::Tensor Run(int64_t column, int64_t first = 0, const std::optional<at::Tensor>& mask = {}) {
    return CachedAttention(q, k, v, keys, values, column, first, mask);
  }
};

// By the formula, in `dtype`, of a cache that holds the new token. Query heads are rows of their
// key head.
at::Tensor Formula(const Inputs& in, int64_t column, int64_t first,
                   const std::optional<at::Tensor>& mask, at::ScalarType dtype) {
  const int64_t count = column + 1 - first;
  const at::Tensor q = in.q.to(dtype).view({in.k.size(0), in.k.size(1), -1, in.k.size(2)});
  const at::Tensor keys = in.keys.narrow(2, first, count).to(dtype);
  const at::Tensor values = in.values.narrow(2, first, count).to(dtype);
  at::Tensor scores = at::matmul(q, keys.transpose(2, 3)) / std::sqrt(double(in.k.size(2)));
  if (mask.has_value()) {
    scores = scores + mask->to(dtype).narrow(1, first, count).view({in.k.size(0), 1, 1, count});
  }
  return at::matmul(at::softmax(scores, -1), values).view(in.q.sizes());
}

const Sizes kSizes[] = {{1, 8, 2, 12, 64},   {2, 3, 3, 5, 7},    {3, 10, 2, 40, 33},
                        {1, 6, 1, 70, 128},  {2, 4, 2, 1, 1},    {1, 2, 1, 1100, 17},
                        {4, 14, 2, 33, 256}, {1, 1, 1, 2100, 16}};

TEST(CachedAttention, AgreesWithFloat64AtEverySizeAndDtype) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : kDtypes) {
    const double tolerance = dtype == at::kDouble     ? 1e-14
                             : dtype == at::kFloat    ? 2e-6
                             : dtype == at::kBFloat16 ? 4e-3
                                                      : 5e-4;
    for (const Sizes& sizes : kSizes) {
      for (const int64_t column : {int64_t{0}, sizes.columns / 2, sizes.columns - 1}) {
        for (const int64_t first : {int64_t{0}, column / 3, column}) {
          Inputs in(sizes, dtype, column);
          const at::Tensor y = in.Run(column, first);

          EXPECT_EQ(y.scalar_type(), dtype);
          EXPECT_LE(RelativeError(y, Formula(in, column, first, {}, at::kDouble)), tolerance)
              << sizes.heads << " heads of " << sizes.size << ", columns " << first << " to "
              << column << ", " << dtype;
        }
      }
    }
  }
}

TEST(CachedAttention, ErrorsAreNoLargerThanThoseOfAten) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Sizes& sizes : {Sizes{2, 8, 2, 200, 64}, Sizes{2, 4, 4, 2000, 128}}) {
      Inputs in(sizes, dtype, sizes.columns - 1);

      const at::Tensor y = in.Run(sizes.columns - 1);

      const at::Tensor truth = Formula(in, sizes.columns - 1, 0, {}, at::kDouble);
      const at::Tensor atens = Formula(in, sizes.columns - 1, 0, {}, dtype);
      EXPECT_LE(RelativeError(y, truth), 1.05 * RelativeError(atens, truth)) << dtype;
    }
  }
}

TEST(CachedAttention, WritesTheNewColumnAlone) {
  Inputs in({2, 4, 2, 9, 5}, at::kFloat, 4);
  const at::Tensor keys = in.keys.clone(), values = in.values.clone();

  in.Run(4);

  keys.select(2, 4).copy_(in.k);
  values.select(2, 4).copy_(in.v);
  EXPECT_TRUE(at::allclose(in.keys, keys, 0, 0, /*equal_nan=*/true));
  EXPECT_TRUE(at::allclose(in.values, values, 0, 0, /*equal_nan=*/true));
}

TEST(CachedAttention, TheMaskIsAddedToTheScores) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : kDtypes) {
    Inputs in({3, 4, 2, 50, 24}, dtype, 40);
    at::Tensor mask = at::randn({3, 50}, in.q.options());
    mask[1].narrow(0, 0, 17).fill_(-std::numeric_limits<double>::infinity());
    in.keys[1].narrow(1, 0, 17).fill_(0);

    const at::Tensor y = in.Run(40, 2, mask);

    const at::Tensor truth = Formula(in, 40, 2, mask, at::kDouble);
    EXPECT_LE(RelativeError(y, truth), dtype == at::kDouble ? 1e-14 : 4e-3) << dtype;
    if (dtype != at::kFloat) continue;
    EXPECT_LE(RelativeError(y, truth), 2e-6);
    // What is hidden has no share in the result.
    in.values[1].narrow(1, 0, 17).fill_(1e30);
    EXPECT_TRUE(at::equal(in.Run(40, 2, mask), y));
  }
}

TEST(CachedAttention, LargeScoresDoNotOverflow) {
  Inputs in({1, 2, 1, 30, 8}, at::kFloat, 29);
  in.q.mul_(1e4);

  const at::Tensor y = in.Run(29);

  EXPECT_LE(RelativeError(y, Formula(in, 29, 0, {}, at::kDouble)), 1e-4);
}

TEST(CachedAttention, ASequenceHasTheSameBitsNextToOthersAndOnAnyNumberOfThreads) {
  Inputs in({5, 6, 2, 700, 64}, at::kFloat, 600);
  const at::Tensor y = in.Run(600);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_TRUE(at::equal(in.Run(600), y));
  at::set_num_threads(threads);

  for (int64_t i = 0; i < 5; ++i) {
    at::Tensor keys = in.keys.narrow(0, i, 1), values = in.values.narrow(0, i, 1);
    const at::Tensor alone = CachedAttention(in.q.narrow(0, i, 1), in.k.narrow(0, i, 1),
                                             in.v.narrow(0, i, 1), keys, values, 600);
    EXPECT_TRUE(at::equal(alone, y.narrow(0, i, 1)));
  }
}

TEST(CachedAttention, TakesPartsOfOtherTensors) {
  at::manual_seed(4);
  Inputs in({2, 4, 2, 20, 16}, at::kFloat, 11);
  const at::Tensor y = in.Run(11);
  Inputs parts = in;
  parts.q = at::cat({in.q, in.q}, 1).narrow(1, 0, 4);
  parts.k = at::cat({in.k, in.k}, 2).narrow(2, 0, 16);
  parts.v = in.v.transpose(0, 1).contiguous().transpose(0, 1);
  parts.keys = at::cat({in.keys, in.keys}, 1).narrow(1, 2, 2);
  parts.values = in.values.transpose(0, 1).contiguous().transpose(0, 1);

  EXPECT_TRUE(at::equal(parts.Run(11), y));
  EXPECT_TRUE(at::equal(parts.values.select(2, 11), in.v));
}

TEST(CachedAttention, NoSequencesGiveNoRows) {
  Inputs in({0, 4, 2, 20, 16}, at::kFloat, 0);

  EXPECT_EQ(in.Run(3).sizes(), at::IntArrayRef({0, 4, 16}));
}

TEST(CachedAttention, GradientsAreRefused) {
  Inputs in({1, 2, 1, 4, 8}, at::kFloat, 2);
  in.q.requires_grad_(true);

  EXPECT_THAT(MessageOf([&] { in.Run(2); }), HasSubstr("call it in no_grad"));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(in.Run(2).sizes(), in.q.sizes());
}

TEST(CachedAttention, BadInputIsNamed) {
  const Inputs good({1, 4, 2, 9, 8}, at::kFloat, 0);
  const auto message_of = [&](auto change, int64_t column = 3, int64_t first = 0,
                              const std::optional<at::Tensor>& mask = {}) {
    Inputs in = good;
    change(in);
    return MessageOf([&] { in.Run(column, first, mask); });
  };
  const auto nothing = [](Inputs&) {};

  EXPECT_THAT(message_of([](Inputs& in) { in.q = in.q.narrow(1, 0, 3); }),
              HasSubstr("heads is a multiple of kv_heads; got [1, 3, 8], [1, 2, 8] and [1, 2, 8]"));
  EXPECT_THAT(message_of([](Inputs& in) { in.q = in.q.to(at::kInt); }),
              HasSubstr("q must be float16, bfloat16, float32 or float64, got Int"));
  EXPECT_THAT(message_of([](Inputs& in) { in.v = in.v.to(at::kDouble); }),
              HasSubstr("v is Double, but q is Float"));
  EXPECT_THAT(message_of([](Inputs& in) { in.keys = in.keys[0]; }),
              HasSubstr("keys must have shape [1, 2, columns, 8], because k has shape [1, 2, 8]; "
                        "got [2, 9, 8]"));
  EXPECT_THAT(message_of([](Inputs& in) { in.values = in.values.to(at::kHalf); }),
              HasSubstr("values is Half, but k is Float"));
  EXPECT_THAT(message_of([](Inputs& in) { in.values = in.values.narrow(2, 0, 8); }),
              HasSubstr("keys has 9 columns, but values has 8"));
  EXPECT_THAT(message_of([](Inputs& in) {
                in.keys = in.keys.transpose(1, 2).contiguous().transpose(1, 2);
              }),
              HasSubstr("the columns of keys must lie one after the other in memory"));
  EXPECT_THAT(message_of(nothing, 9),
              HasSubstr("column must be from first to 8, got column 9 and first 0"));
  EXPECT_THAT(message_of(nothing, 3, 4), HasSubstr("got column 3 and first 4"));
  EXPECT_THAT(message_of(nothing, 3, 0, at::zeros({1, 8})),
              HasSubstr("mask must have shape [1, 9], got [1, 8]"));
}

}  // namespace
}  // namespace lockstep::kernels
