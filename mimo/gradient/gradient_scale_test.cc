#include "mimo/gradient/gradient_scale.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mimo/batch/ownership.h"
#include "mimo/testing/random_topology.h"

namespace lockstep::mimo {
namespace {

using ::testing::HasSubstr;

double Scale(const GradientScaleOptions& options) {
  absl::StatusOr<double> scale = GradientScale(options);
  EXPECT_TRUE(scale.ok()) << scale.status();
  return *scale;
}

TEST(GradientScale, HeaderExample) {
  EXPECT_DOUBLE_EQ(Scale({.loss = Loss::kMeanOfMeans,
                          .reduction = Reduction::kMean,
                          .reduction_size = 4,
                          .language_dp = 2}),
                   2.0);
}

TEST(GradientScale, TheRulesOfTheReport) {
  const auto per_token = [](Reduction reduction, int64_t size, int64_t tokens) {
    return Scale({.reduction = reduction, .reduction_size = size, .num_tokens = tokens});
  };
  const auto means = [](Reduction reduction, int64_t size, int64_t language_dp) {
    return Scale({.loss = Loss::kMeanOfMeans,
                  .reduction = reduction,
                  .reduction_size = size,
                  .language_dp = language_dp});
  };

  // A gradient that sums to 100 over 100 tokens, reduced by a mean over 4: 4 / 100 makes 4 of it
  // where the factor without module_dp makes 1. Reduced by a sum, 20,000 becomes 200, not 800.
  EXPECT_DOUBLE_EQ(100 * per_token(Reduction::kMean, 4, 100), 4.0);
  EXPECT_DOUBLE_EQ(20'000 * per_token(Reduction::kSum, 4, 100), 200.0);
  EXPECT_DOUBLE_EQ(per_token(Reduction::kSum, 1, 100), 0.01);
  EXPECT_DOUBLE_EQ(means(Reduction::kMean, 4, 2), 2.0);
  EXPECT_DOUBLE_EQ(means(Reduction::kMean, 1, 4), 0.25);
  EXPECT_DOUBLE_EQ(means(Reduction::kMean, 3, 3), 1.0);
  EXPECT_DOUBLE_EQ(means(Reduction::kSum, 3, 4), 0.25);
}

// Each sample has a gradient for each of its tokens, in both modules. For any dp, a module's
// reduced gradient times its factor equals the gradient of one rank.
TEST(GradientScale, MakesEveryModulesGradientThatOfOneRank) {
  std::mt19937 random(4066);
  for (int c = 0; c < 2'000; ++c) {
    const int64_t samples = 12 * Draw(random, 1, 2);
    std::vector<int64_t> tokens;
    std::vector<double> gradient;  // sum over the sample's tokens
    for (int64_t s = 0; s < samples; ++s) {
      tokens.push_back(Draw(random, 1, 9));
      gradient.push_back(static_cast<double>(Draw(random, -100, 100)));
    }
    const int64_t sizes[] = {1, 2, 3, 4, 6};
    const int64_t language_dp = sizes[Draw(random, 0, 4)];
    const int64_t module_dp = sizes[Draw(random, 0, 4)];
    const Loss loss = Draw(random, 0, 1) == 0 ? Loss::kPerToken : Loss::kMeanOfMeans;
    const Reduction reduction = Draw(random, 0, 1) == 0 ? Reduction::kSum : Reduction::kMean;

    // The gradient of each sample's loss: by kMeanOfMeans its replica of "language" divides by its
    // tokens.
    int64_t num_tokens = 0;
    double wanted = 0;
    std::vector<double> flows = gradient;
    for (int64_t d = 0; d < language_dp; ++d) {
      const Range shard = *SamplesOfShard(samples, d, language_dp);
      int64_t shard_tokens = 0;
      for (int64_t s = shard.begin; s < shard.end; ++s) {
        shard_tokens += tokens[static_cast<size_t>(s)];
      }
      num_tokens += shard_tokens;
      for (int64_t s = shard.begin; s < shard.end && loss == Loss::kMeanOfMeans; ++s) {
        flows[static_cast<size_t>(s)] /= static_cast<double>(shard_tokens);
        wanted += flows[static_cast<size_t>(s)] / static_cast<double>(language_dp);
      }
    }
    for (int64_t s = 0; s < samples && loss == Loss::kPerToken; ++s) {
      wanted += gradient[static_cast<size_t>(s)] / static_cast<double>(num_tokens);
    }
    double reduced = 0;
    for (int64_t d = 0; d < module_dp; ++d) {
      const Range shard = *SamplesOfShard(samples, d, module_dp);
      double local = 0;
      for (int64_t s = shard.begin; s < shard.end; ++s) local += flows[static_cast<size_t>(s)];
      reduced += reduction == Reduction::kMean ? local / static_cast<double>(module_dp) : local;
    }

    const double scale = Scale({.loss = loss,
                                .reduction = reduction,
                                .reduction_size = module_dp,
                                .language_dp = language_dp,
                                .num_tokens = num_tokens});

    ASSERT_NEAR(reduced * scale, wanted, 1e-9) << "case " << c;
  }
}

TEST(GradientScale, MicroBatchesAreAveragedInMeanOfMeansAlone) {
  GradientScaleOptions options = {
      .loss = Loss::kMeanOfMeans, .language_dp = 2, .num_micro_batches = 4, .num_tokens = 10};
  EXPECT_DOUBLE_EQ(Scale(options), 0.125);
  options.loss = Loss::kPerToken;
  EXPECT_DOUBLE_EQ(Scale(options), 0.1);
}

TEST(GradientScale, ErrorsNameTheOption) {
  const auto message = [](const GradientScaleOptions& options) {
    return std::string(GradientScale(options).status().message());
  };
  EXPECT_EQ(message({.reduction_size = 0, .num_tokens = 1}),
            "mimo: gradient scale: reduction_size is 0; it must be positive");
  EXPECT_THAT(message({.language_dp = -1}), HasSubstr("language_dp is -1"));
  EXPECT_THAT(message({.num_micro_batches = 0}), HasSubstr("num_micro_batches is 0"));
  EXPECT_THAT(message({.num_tokens = 0}),
              HasSubstr("num_tokens is 0: no token of the step has a loss"));
  EXPECT_EQ(message({.loss = Loss::kMeanOfMeans}), "");
  EXPECT_THAT(message({.num_tokens = -1}), HasSubstr("num_tokens is -1; it must not be negative"));
}

TEST(CountsInNorm, ShardsOnceAndReplicasOnce) {
  EXPECT_TRUE(CountsInNorm({.tp = 1, .pp = 2}, /*divided_over_tp=*/true));
  EXPECT_FALSE(CountsInNorm({.tp = 1}, /*divided_over_tp=*/false));
  EXPECT_TRUE(CountsInNorm({}, /*divided_over_tp=*/false));
  EXPECT_FALSE(CountsInNorm({.dp = 1}, /*divided_over_tp=*/true));
  EXPECT_FALSE(CountsInNorm({.cp = 1}, /*divided_over_tp=*/true));
}

}  // namespace
}  // namespace lockstep::mimo
