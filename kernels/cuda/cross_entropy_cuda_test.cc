// The kernels of cross_entropy_cuda.cu on the emulator: results against float64, and no fault in
// any access. Random shapes, strides and addresses; seeds are fixed.

#include "kernels/cuda/cross_entropy_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "c10/core/ScalarType.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/testing/dtypes.h"
#include "kernels/cuda/testing/emulator.h"

namespace lockstep::kernels {
namespace {

using emulator::Epsilon;
using emulator::Memory;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename T>
using AccOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

struct Case {
  int64_t rows, size;
  double smoothing = 0, z_loss = 0;
  bool has_weight = false, has_entropy = false, in_place = false;
  double shift = 0;  // is added to all logits
};

// The results of a row in float64, and the gradient of its logits.
struct Row {
  double loss, lse, entropy;
  std::vector<double> gradient;
};

Row Expected(const Case& one, const std::vector<double>& z, int64_t label, double weight,
             double dloss, double dlse, double dentropy) {
  const double most = *std::max_element(z.begin(), z.end());
  double sum = 0, total = 0, weighted = 0;
  for (const double x : z) {
    sum += std::exp(x - most);
    weighted += std::exp(x - most) * (x - most);
    total += x - most;
  }
  Row row;
  row.lse = most + std::log(sum);
  row.entropy = std::log(sum) - weighted / sum;
  row.loss = weight *
             ((1 - one.smoothing) * (std::log(sum) + (most - z[label])) +
              one.smoothing * (std::log(sum) - total / z.size()) + one.z_loss * row.lse * row.lse);
  for (size_t i = 0; i < z.size(); ++i) {
    const double p = std::exp(z[i] - most) / sum, is_label = static_cast<int64_t>(i) == label;
    row.gradient.push_back(dloss * weight *
                               (p * (1 + 2 * one.z_loss * row.lse) -
                                (1 - one.smoothing) * is_label - one.smoothing / z.size()) +
                           dlse * p - dentropy * p * (std::log(p) + row.entropy));
  }
  return row;
}

// `actual` may differ by some roundings of numbers as large as `magnitude`.
#define EXPECT_CLOSE(T, actual, expected, magnitude)                  \
  ASSERT_NEAR(static_cast<double>(actual), expected,                  \
              4 * Epsilon<T>() * ((magnitude) + std::abs(expected)) + \
                  (std::is_same_v<T, double> ? 1e-12 : 1e-6))

template <typename T>
void Check(const Case& one, std::mt19937& random) {
  using Acc = AccOf<T>;
  std::normal_distribution<double> normal;
  const auto number = [&](int64_t) { return 3 * normal(random); };
  const auto logit = [&](int64_t) { return one.shift + 3 * normal(random); };
  const auto pick = [&](std::vector<int64_t> of) { return of[random() % of.size()]; };
  const int64_t stride = one.size + pick({0, 0, 3, 8}), offset = pick({0, 0, 1, 8});
  Memory<T> z("logits", {.numbers = (one.rows - 1) * stride + one.size, .offset = offset});
  Memory<int64_t> target("target", {.numbers = one.rows});
  Memory<Acc> weight("weight", {.numbers = one.rows});
  Memory<Acc> loss("loss", {.numbers = one.rows}), entropy("entropy", {.numbers = one.rows});
  Memory<double> lse("lse", {.numbers = one.rows});
  z.Fill(logit);
  z.ForbidGaps(one.size, stride);
  weight.Fill([&](int64_t) { return 0.5 + std::abs(normal(random)); });
  target.Fill(
      [&](int64_t) { return random() % 4 == 0 ? -7 : static_cast<int64_t>(random() % one.size); });
  std::vector<std::vector<double>> rows(one.rows);
  for (int64_t row = 0; row < one.rows; ++row)
    for (int64_t i = 0; i < one.size; ++i)
      rows[row].push_back(static_cast<double>(z[row * stride + i]));
  T* const written = one.in_place ? z.in_out() : nullptr;
  LossRows all = {.dtype = c10::CppTypeToScalarType<T>::value,
                  .size = one.size,
                  .logits = one.in_place ? written : z.input(),
                  .stride = stride,
                  .target = target.input(),
                  .ignore_index = -7,
                  .label_smoothing = one.smoothing,
                  .z_loss = one.z_loss,
                  .weight = one.has_weight ? weight.input() : nullptr,
                  .loss = loss.output(),
                  .lse = lse.output(),
                  .entropy = one.has_entropy ? entropy.output() : nullptr,
                  .gradient = written};
  kLossKernelsOfCuda.losses(all, 0, one.rows);
  ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
  EXPECT_EQ(loss.bytes().num_unwritten() + lse.bytes().num_unwritten(), 0);
  if (one.has_entropy) {
    EXPECT_EQ(entropy.bytes().num_unwritten(), 0);
  }

  // Gradients of the results: dense, or one number for all.
  const bool dense = random() % 2 == 0;
  Memory<Acc> dloss("dloss", {.numbers = dense ? one.rows : 1});
  Memory<Acc> dlse("dlse", {.numbers = one.rows}), dentropy("dentropy", {.numbers = one.rows});
  Memory<T> dlogits("dlogits", {.numbers = one.rows * one.size, .offset = pick({0, 0, 1})});
  dloss.Fill(number);
  dlse.Fill(number);
  dentropy.Fill(number);
  if (!one.in_place) {
    kLossKernelsOfCuda.gradients({.rows = all,
                                  .dloss = dloss.input(),
                                  .dloss_stride = dense ? 1 : 0,
                                  .dlse = dense ? dlse.input() : nullptr,
                                  .dlse_stride = 1,
                                  .dentropy = one.has_entropy ? dentropy.input() : nullptr,
                                  .dentropy_stride = 1,
                                  .dlogits = dlogits.output()},
                                 0, one.rows);
    ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
    EXPECT_EQ(dlogits.bytes().num_unwritten(), 0);
  }

  for (int64_t row = 0; row < one.rows; ++row) {
    const auto gradient = [&](int64_t i) {
      return static_cast<double>(one.in_place ? z[row * stride + i] : dlogits[row * one.size + i]);
    };
    if (target[row] == -7) {
      EXPECT_EQ(loss[row], 0);
      EXPECT_EQ(lse[row], 0);
      if (one.has_entropy) {
        EXPECT_EQ(entropy[row], 0);
      }
      for (int64_t i = 0; i < one.size; ++i) ASSERT_EQ(gradient(i), 0);
      continue;
    }
    const double of_loss = one.in_place ? 1 : dloss[dense ? row : 0];
    const double of_lse = one.in_place || !dense ? 0 : dlse[row];
    const double of_entropy = one.in_place || !one.has_entropy ? 0 : dentropy[row];
    const Row expected = Expected(one, rows[row], target[row], one.has_weight ? weight[row] : 1,
                                  of_loss, of_lse, of_entropy);
    EXPECT_CLOSE(Acc, lse[row], expected.lse, std::abs(expected.lse));
    EXPECT_CLOSE(Acc, loss[row], expected.loss, 20);
    if (one.has_entropy) {
      EXPECT_CLOSE(Acc, entropy[row], expected.entropy, 20);
    }
    for (int64_t i = 0; i < one.size; ++i) {
      SCOPED_TRACE(i);
      EXPECT_CLOSE(T, gradient(i), expected.gradient[i], Epsilon<Acc>() / Epsilon<T>() * 100);
    }
  }
}

// Sizes next to each change of geometry, and of vocabularies, which are padded and are not.
TEST(CrossEntropyOfCuda, AgreesWithFloat64) {
  const struct {
    int64_t rows, size;
  } kShapes[] = {{1, 1},    {70, 2},   {33, 31},  {40, 64},  {9, 257},  {21, 1000},
                 {9, 1024}, {3, 1025}, {2, 4099}, {2, 8200}, {1, 50257}};
  std::mt19937 random(1);
  for (const auto& shape : kShapes) {
    for (const bool in_place : {false, true}) {
      const auto run = [&](auto number) {
        Case one = {.rows = shape.rows, .size = shape.size, .in_place = in_place};
        one.smoothing = std::vector<double>{0, 0.1, 1}[random() % 3];
        one.z_loss = random() % 2 * 0.01;
        one.has_weight = random() % 2 == 0;
        one.has_entropy = random() % 2 == 0;
        SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.size << ", smoothing "
                                        << one.smoothing << ", in place " << in_place);
        Check<decltype(number)>(one, random);
      };
      emulator::ForEachDtype(run);
      if (shape.size < 2000) run(double());
      ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
    }
  }
}

// lse leaves few digits of their differences, or none.
TEST(CrossEntropyOfCuda, LargeLogitsKeepTheDigitsOfTheirDifferences) {
  std::mt19937 random(2);
  for (const double shift : {1e4, -3e6, 1e12, 1e17}) {
    for (const int64_t size : {40, 3000}) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << shift << ", " << size << ", in place " << in_place);
        Case one = {.rows = 3, .size = size, .smoothing = 0.1, .in_place = in_place};
        one.has_entropy = !in_place;
        one.shift = shift;
        Check<float>(one, random);
        Check<double>(one, random);
      }
    }
  }
}

struct Small {
  Memory<float> z, loss;
  Memory<double> lse;
  Memory<int64_t> target;
  int64_t size;
  double smoothing = 0, z_loss = 0;

  Small(int64_t size, int64_t label)
      : z("logits", {.numbers = size}),
        loss("loss", {.numbers = 1}),
        lse("lse", {.numbers = 1}),
        target("target", {.numbers = 1}),
        size(size) {
    z.Fill([](int64_t) { return 1; });
    target.Fill([&](int64_t) { return label; });
  }
  void Run() {
    kLossKernelsOfCuda.losses({.dtype = at::kFloat,
                               .size = size,
                               .logits = z.input(),
                               .stride = size,
                               .target = target.input(),
                               .ignore_index = -100,
                               .label_smoothing = smoothing,
                               .z_loss = z_loss,
                               .weight = nullptr,
                               .loss = loss.output(),
                               .lse = lse.output(),
                               .entropy = nullptr,
                               .gradient = nullptr},
                              0, 1);
  }
};

TEST(CrossEntropyOfCuda, LabelsOutsideOfTheVocabularyStopIt) {
  for (const int64_t size : {30, 3000}) {
    for (const int64_t label : {size, int64_t{-1}}) {
      Small one(size, label);
      one.Run();
      EXPECT_THAT(emulator::TakeFaults(),
                  Contains(HasSubstr("the assertion does not hold: label >= 0 && label < size")));
    }
  }
}

TEST(CrossEntropyOfCuda, LogitsOfMinusInfinityHaveNoShareAndNanIsNotHidden) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int64_t size : {32, 9000}) {
    for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
      Small one(size, size - 1);
      // Whole threads see nothing but the bad number.
      one.z.Fill([&](int64_t i) { return i < size / 2 ? bad : 1; });
      one.Run();
      ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
      if (bad == -kInfinity) {
        EXPECT_NEAR(one.loss[0], std::log(size / 2.0), 1e-5);
      } else {
        EXPECT_TRUE(std::isnan(one.loss[0])) << bad;
      }
    }
  }
}

TEST(CrossEntropyOfCuda, ALabelAtMinusInfinityHasAnInfiniteLoss) {
  for (const int64_t size : {30, 3000}) {
    for (const double smoothing : {0., 0.1, 1.}) {
      Small one(size, 5);
      one.smoothing = smoothing;
      one.z_loss = 0.1;
      one.z.Fill([&](int64_t i) { return i == 5 ? -std::numeric_limits<double>::infinity() : 1; });
      one.Run();
      ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
      EXPECT_EQ(one.loss[0], std::numeric_limits<float>::infinity()) << smoothing;
    }
  }
}

// A vocabulary is read once in forward, 16 bytes at a time.
TEST(CrossEntropyOfCuda, ReadsTheLogitsOnce) {
  Small one(16384, 3);
  emulator::ResetCounts();
  one.Run();
  EXPECT_EQ(emulator::CountsSoFar().launches, 1);
  EXPECT_LE(emulator::CountsSoFar().loaded_bytes, 16384 * 4 + 512 * 8 + 8);
  EXPECT_LE(emulator::CountsSoFar().loads, 16384 / 4 + 512 + 2);
  EXPECT_THAT(emulator::TakeFaults(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::kernels
