#include "batching/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Samples of one kind whose cost is their length.
std::vector<Sample> OfLengths(const std::vector<int64_t>& lengths, int kind = 0) {
  std::vector<Sample> samples;
  for (const int64_t length : lengths) {
    samples.push_back(
        {.tokens = length, .cost = static_cast<double>(length), .kind = kind, .least_cost = 1});
  }
  return samples;
}

Plan Make(const std::vector<Sample>& samples, const PlanOptions& options) {
  absl::StatusOr<Plan> plan = MakePlan(samples, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan{};
}

std::vector<int64_t> SamplesAt(const Plan& plan, int rank, int64_t micro_step) {
  const auto span = plan.samples_of(plan.at(rank, micro_step));
  return std::vector<int64_t>(span.begin(), span.end());
}

int64_t TokensOfRank(const Plan& plan, const std::vector<Sample>& samples, int rank) {
  int64_t tokens = 0;
  for (int64_t step = 0; step < plan.micro_steps; ++step) {
    for (const int64_t i : plan.samples_of(plan.at(rank, step)))
      tokens += samples[static_cast<size_t>(i)].tokens;
  }
  return tokens;
}

// Everything that the header promises of a plan.
void ExpectSound(const Plan& plan, const std::vector<Sample>& samples, const PlanOptions& options) {
  ASSERT_EQ(plan.ranks, options.ranks);
  ASSERT_EQ(plan.micro_batches.size(), static_cast<size_t>(plan.micro_steps * plan.ranks));
  std::vector<int> times(samples.size(), 0);
  double makespan = 0;
  int64_t padding = 0;
  int last_kind = -1;
  for (int64_t step = 0; step < plan.micro_steps; ++step) {
    double most_expensive = 0;
    bool any_real = false;
    bool any_padding = false;
    int64_t most_samples = 0;
    const int kind = plan.at(0, step).kind;
    EXPECT_GE(kind, last_kind) << "steps come in order of kind";
    last_kind = kind;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const MicroBatch& micro_batch = plan.at(rank, step);
      EXPECT_EQ(micro_batch.kind, kind) << "one kind at a step";
      EXPECT_LT(micro_batch.begin, micro_batch.end) << "no micro-batch is empty";
      int64_t tokens = 0;
      for (const int64_t i : plan.samples_of(micro_batch)) {
        EXPECT_EQ(samples[static_cast<size_t>(i)].kind, kind);
        tokens += samples[static_cast<size_t>(i)].tokens;
        if (!micro_batch.padding) ++times[static_cast<size_t>(i)];
      }
      EXPECT_LE(tokens, options.seq_len);
      most_expensive = std::max(most_expensive, micro_batch.cost);
      any_real |= !micro_batch.padding;
      padding += micro_batch.padding ? 1 : 0;
      any_padding |= micro_batch.padding;
      if (!micro_batch.padding)
        most_samples = std::max(most_samples, micro_batch.end - micro_batch.begin);
    }
    EXPECT_TRUE(any_real) << "no step is padding alone";
    if (options.balance == Balance::kLockstep && any_padding) {
      EXPECT_EQ(most_samples, 1) << "no rank pads while another could share";
    }
    makespan += most_expensive;
  }
  EXPECT_THAT(times, ::testing::Each(1)) << "every sample is in one micro-batch";
  EXPECT_EQ(plan.padding_micro_batches, padding);
  EXPECT_DOUBLE_EQ(plan.makespan, makespan);
  EXPECT_LE(plan.lower_bound, plan.makespan * (1 + 1e-9));
  EXPECT_LE(plan.ideal, plan.lower_bound * (1 + 1e-9));
}

TEST(MakePlan, HeaderExample) {
  const std::vector<Sample> samples = {{.tokens = 100, .cost = 100},
                                       {.tokens = 90, .cost = 90},
                                       {.tokens = 80, .cost = 80},
                                       {.tokens = 70, .cost = 70}};

  const Plan plan = Make(samples, {.seq_len = 100, .ranks = 2});

  ASSERT_EQ(plan.micro_steps, 2);
  EXPECT_THAT(SamplesAt(plan, 0, 0), ElementsAre(0));
  EXPECT_THAT(SamplesAt(plan, 1, 0), ElementsAre(1));
  EXPECT_THAT(SamplesAt(plan, 0, 1), ElementsAre(3));
  EXPECT_THAT(SamplesAt(plan, 1, 1), ElementsAre(2));
}

TEST(MakePlan, NoSamplesGiveAPlanOfNoSteps) {
  const Plan plan = Make({}, {.seq_len = 100, .ranks = 4});

  EXPECT_EQ(plan.micro_steps, 0);
  EXPECT_THAT(plan.micro_batches, IsEmpty());
  EXPECT_EQ(plan.makespan, 0);
}

TEST(MakePlan, EveryRankHasTheSameCount) {
  const struct {
    int samples;
    int ranks;
    int64_t steps;
  } kCases[] = {{4, 2, 2}, {5, 2, 3}, {7, 1, 7}, {11, 4, 3}, {1, 8, 1}, {8, 8, 1}, {9, 8, 2}};
  for (const Balance balance : {Balance::kLockstep, Balance::kRoundRobin}) {
    for (const auto& c : kCases) {
      // Each sample fills a micro-batch.
      const std::vector<Sample> samples =
          OfLengths(std::vector<int64_t>(static_cast<size_t>(c.samples), 100));
      const PlanOptions options = {.seq_len = 100, .ranks = c.ranks, .balance = balance};

      const Plan plan = Make(samples, options);

      EXPECT_EQ(plan.micro_steps, c.steps) << c.samples << " samples on " << c.ranks << " ranks";
      EXPECT_EQ(plan.padding_micro_batches, c.steps * c.ranks - c.samples);
      ExpectSound(plan, samples, options);
    }
  }
}

TEST(MakePlan, RankTotalsAreEvenToo) {
  const std::vector<Sample> samples = OfLengths({100, 90, 80, 70});

  const Plan plan = Make(samples, {.seq_len = 100, .ranks = 2});

  EXPECT_EQ(TokensOfRank(plan, samples, 0), 170);
  EXPECT_EQ(TokensOfRank(plan, samples, 1), 170);
}

TEST(MakePlan, SpreadsOverTheRanksRatherThanPad) {
  // Three full micro-batches would do; four ranks want four.
  const std::vector<Sample> samples = OfLengths({6, 6, 5, 5, 4, 4});

  const Plan plan = Make(samples, {.seq_len = 12, .ranks = 4});

  EXPECT_EQ(plan.micro_steps, 1);
  EXPECT_EQ(plan.padding_micro_batches, 0);
}

TEST(MakePlan, KindsNeverShareAStep) {
  std::vector<Sample> samples = OfLengths({30, 20, 10}, 0);
  for (const Sample& sample : OfLengths({50, 50, 50, 50, 50}, 1)) samples.push_back(sample);
  for (const Sample& sample : OfLengths({100}, 7)) samples.push_back(sample);
  const PlanOptions options = {.seq_len = 100, .ranks = 2};

  const Plan plan = Make(samples, options);

  ExpectSound(plan, samples, options);
  EXPECT_EQ(plan.at(0, 0).kind, 0);
  EXPECT_EQ(plan.at(0, plan.micro_steps - 1).kind, 7);
}

TEST(MakePlan, PaddingIsTheCheapestShortenedSample) {
  std::vector<Sample> samples = OfLengths({100, 90, 80});
  samples[0].least_cost = 5;
  samples[1].least_cost = 2;
  samples[2].least_cost = 9;

  const Plan plan = Make(samples, {.seq_len = 100, .ranks = 2});

  ASSERT_EQ(plan.padding_micro_batches, 1);
  const auto padding = std::find_if(plan.micro_batches.begin(), plan.micro_batches.end(),
                                    [](const MicroBatch& m) { return m.padding; });
  EXPECT_THAT(plan.samples_of(*padding), ElementsAre(1));
  EXPECT_EQ(padding->cost, 2);
}

TEST(MakePlan, RoundRobinDealsMicroBatchesInTheirOrder) {
  // Lengths fall, so that first-fit decreasing keeps this order.
  const std::vector<Sample> samples = OfLengths({10, 9, 8, 7, 6});

  const Plan plan = Make(samples, {.seq_len = 10, .ranks = 2, .balance = Balance::kRoundRobin});

  ASSERT_EQ(plan.micro_steps, 3);
  EXPECT_THAT(SamplesAt(plan, 0, 0), ElementsAre(0));
  EXPECT_THAT(SamplesAt(plan, 1, 0), ElementsAre(1));
  EXPECT_THAT(SamplesAt(plan, 0, 1), ElementsAre(2));
  EXPECT_THAT(SamplesAt(plan, 1, 1), ElementsAre(3));
  EXPECT_THAT(SamplesAt(plan, 0, 2), ElementsAre(4));
  EXPECT_TRUE(plan.at(1, 2).padding);
  EXPECT_THAT(SamplesAt(plan, 1, 2), ElementsAre(0))
      << "a copy of the first micro-batch of the kind";
}

TEST(MakePlan, RoundRobinPacksFirstFitDecreasing) {
  const std::vector<Sample> samples = OfLengths({4, 8, 1, 4, 2, 1});

  const Plan plan = Make(samples, {.seq_len = 10, .ranks = 1, .balance = Balance::kRoundRobin});

  // 8 + 2; then 4 + 4 + 1 + 1.
  ASSERT_EQ(plan.micro_steps, 2);
  EXPECT_THAT(SamplesAt(plan, 0, 0), ElementsAre(1, 4));
  EXPECT_THAT(SamplesAt(plan, 0, 1), ElementsAre(0, 3, 2, 5));
}

TEST(MakePlan, OneLongSampleDoesNotIdleTheOtherRanks) {
  // The long one lasts 10 whatever is done: the other rank gets 10 too in that step.
  const std::vector<Sample> samples = OfLengths({10, 5, 5, 3, 3});

  const Plan plan = Make(samples, {.seq_len = 10, .ranks = 2});

  EXPECT_EQ(plan.makespan, 13);
  EXPECT_EQ(plan.ideal, 13);
}

TEST(MakePlan, MicroBatchCostFormsTheSteps) {
  // Every micro-batch costs 100 more than its tokens: fewer of them is better, and the report says
  // so.
  const std::vector<Sample> samples = OfLengths({5, 5, 5, 5});
  PlanOptions options = {.seq_len = 10, .ranks = 1};
  options.micro_batch_cost = [](absl::Span<const int64_t> members) {
    return 100 + 5.0 * static_cast<double>(members.size());
  };

  const Plan plan = Make(samples, options);

  EXPECT_EQ(plan.micro_steps, 2);
  EXPECT_EQ(plan.makespan, 220);
  EXPECT_EQ(plan.lower_bound, 0);
}

TEST(MakePlan, ErrorsNameWhatIsWrong) {
  const struct {
    std::vector<Sample> samples;
    PlanOptions options;
    const char* message;
  } kCases[] = {
      {OfLengths({1, 11}),
       {.seq_len = 10, .ranks = 1},
       "sample 1 has 11 tokens; a sample has from 1 to seq_len = 10"},
      {OfLengths({0}), {.seq_len = 10, .ranks = 1}, "sample 0 has 0 tokens"},
      {OfLengths({1}), {.seq_len = 10, .ranks = 0}, "ranks must be from 1 to 1048576, not 0"},
      {OfLengths({1}), {.seq_len = 0, .ranks = 1}, "seq_len must be from 1 to 2147483647, not 0"},
      {{{.tokens = 1, .cost = std::nan("")}}, {.seq_len = 10, .ranks = 1}, "sample 0 costs nan"},
      {{{.tokens = 1, .cost = -1}}, {.seq_len = 10, .ranks = 1}, "sample 0 costs -1"},
      {{{.tokens = 1, .cost = 1, .least_cost = std::nan("")}},
       {.seq_len = 10, .ranks = 1},
       "sample 0 costs nan"},
      {{{.tokens = 2, .cost = 1, .least_tokens = 3}},
       {.seq_len = 10, .ranks = 1},
       "the shortest copy of sample 0 has 3 tokens; it has from 1 to the sample's 2"},
      {OfLengths({1}), {.seq_len = int64_t{1} << 31, .ranks = 1}, "not 2147483648"},
      {OfLengths({1}), {.seq_len = 10, .ranks = 1 << 21}, "not 2097152"},
      {OfLengths({1}),
       {.seq_len = 10, .worth_a_step = std::nan("")},
       "worth_a_step must be a share from 0 to 1, not nan"},
      {OfLengths({1}),
       {.seq_len = 10, .micro_batch_cost = [](absl::Span<const int64_t>) { return -3.0; }},
       "the cost function returned -3; a cost is a finite number from 0 on"},
      {{{.tokens = 1, .cost = 1, .kind = -2}},
       {.seq_len = 10, .ranks = 1},
       "sample 0 is of kind -2"},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<Plan> plan = MakePlan(c.samples, c.options);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(c.message));
  }
}

// Without padding: tokens over what the micro-batches could hold.
double Efficiency(const Plan& plan, int64_t seq_len) {
  return static_cast<double>(plan.tokens) /
         static_cast<double>(plan.micro_steps * plan.ranks * seq_len);
}

TEST(MakePlan, PacksAtLeastAsTightAsFirstFitUnlessAShorterMakespanIsWorthIt) {
  std::mt19937 random(20261121);
  int spread = 0;
  for (int c = 0; c < 2000; ++c) {
    const int num_kinds = 1 + static_cast<int>(random() % 3);
    std::vector<Sample> samples(1 + random() % 60);
    for (Sample& sample : samples) {
      sample.tokens = 1 + static_cast<int64_t>(random() % 100);
      sample.cost = static_cast<double>(sample.tokens * sample.tokens);
      sample.kind = static_cast<int>(random() % static_cast<unsigned>(num_kinds));
    }
    PlanOptions options = {.seq_len = 100, .ranks = 1 + static_cast<int>(random() % 5)};
    const Plan lockstep = Make(samples, options);
    options.worth_a_step = 1;
    const Plan tight = Make(samples, options);
    options.balance = Balance::kRoundRobin;
    const Plan first_fit = Make(samples, options);

    EXPECT_GE(Efficiency(tight, 100), Efficiency(first_fit, 100)) << "case " << c;
    if (Efficiency(lockstep, 100) < Efficiency(first_fit, 100)) {
      ++spread;
      EXPECT_LT(lockstep.makespan, first_fit.makespan) << "case " << c;
      EXPECT_LT(lockstep.makespan, tight.makespan) << "case " << c;
    }
  }
  EXPECT_GT(spread, 0) << "no case in which the trade was made";
}

// The least makespan of all plans: every way to put samples into bins, bins sorted into steps.
double BestOfAllPlans(const std::vector<Sample>& samples, const PlanOptions& options) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int64_t> tokens;
  std::vector<double> costs;
  const std::function<void(size_t)> place = [&](size_t i) {
    if (i == samples.size()) {
      std::vector<double> sorted = costs;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      double makespan = 0;
      for (size_t s = 0; s < sorted.size(); s += static_cast<size_t>(options.ranks))
        makespan += sorted[s];
      best = std::min(best, makespan);
      return;
    }
    for (size_t b = 0; b <= tokens.size(); ++b) {
      if (b == tokens.size()) {
        tokens.push_back(0);
        costs.push_back(0);
      }
      if (tokens[b] + samples[i].tokens <= options.seq_len) {
        tokens[b] += samples[i].tokens;
        costs[b] += samples[i].cost;
        place(i + 1);
        tokens[b] -= samples[i].tokens;
        costs[b] -= samples[i].cost;
      }
      if (tokens.back() == 0 && b + 1 == tokens.size()) {
        tokens.pop_back();
        costs.pop_back();
        break;
      }
    }
  };
  place(0);
  return best;
}

TEST(MakePlan, IsNearTheBestOfAllPlans) {
  std::mt19937 random(1);
  double worst = 1;
  double sum = 0;
  constexpr int kCases = 300;
  for (int c = 0; c < kCases; ++c) {
    std::vector<int64_t> lengths(1 + random() % 8);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 10);
    const std::vector<Sample> samples = OfLengths(lengths);
    const PlanOptions options = {
        .seq_len = 10, .ranks = 1 + static_cast<int>(random() % 3), .worth_a_step = 0};

    const Plan plan = Make(samples, options);

    ExpectSound(plan, samples, options);
    const double best = BestOfAllPlans(samples, options);
    EXPECT_GE(plan.makespan, best * (1 - 1e-9)) << "the oracle missed a plan";
    EXPECT_LE(plan.lower_bound, best * (1 + 1e-9)) << "the bound is none";
    worst = std::max(worst, plan.makespan / best);
    sum += plan.makespan / best;
  }
  EXPECT_LE(worst, 4.0 / 3) << "Graham's bound for longest processing time first";
  EXPECT_LE(sum / kCases, 1.02);
}

TEST(MakePlan, IsSoundOnTenThousandRandomCases) {
  const unsigned seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int c = 0; c < 10000; ++c) {
    const int64_t seq_len = 1 + static_cast<int64_t>(random() % 64);
    const int num_kinds = 1 + static_cast<int>(random() % 4);
    std::vector<Sample> samples(random() % 40);
    const bool quadratic = random() % 2 == 0;
    for (Sample& sample : samples) {
      sample.tokens = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(seq_len));
      const double tokens = static_cast<double>(sample.tokens);
      sample.cost = quadratic ? tokens + 0.1 * tokens * tokens : static_cast<double>(random() % 5);
      sample.kind = static_cast<int>(random() % static_cast<unsigned>(num_kinds));
      sample.least_tokens = 1;
    }
    const PlanOptions options = {
        .seq_len = seq_len,
        .ranks = 1 + static_cast<int>(random() % 9),
        .balance = random() % 2 == 0 ? Balance::kLockstep : Balance::kRoundRobin,
        .worth_a_step = random() % 2 == 0 ? 0.0 : 0.005};

    ExpectSound(Make(samples, options), samples, options);

    if (::testing::Test::HasFailure()) FAIL() << "case " << c;
  }
}

TEST(MakePlan, NeedsNoMoreMicroStepsThanFirstFitWhereTheyAreWorthNothing) {
  std::mt19937 random(7);
  for (int c = 0; c < 200; ++c) {
    std::vector<int64_t> lengths(50 + random() % 100);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % 100);
    const std::vector<Sample> samples = OfLengths(lengths);

    const Plan lockstep = Make(samples, {.seq_len = 100, .ranks = 4, .worth_a_step = 1});
    const Plan first_fit =
        Make(samples, {.seq_len = 100, .ranks = 4, .balance = Balance::kRoundRobin});

    EXPECT_LE(lockstep.micro_steps, first_fit.micro_steps);
  }
}

// The workload of docs/batching.md: lengths lognormal(6.5, 1), clipped; the cost of an 8B model.
std::vector<Sample> ManyLengths(int count, int64_t seq_len) {
  std::mt19937 random(0);
  std::lognormal_distribution<double> lengths(6.5, 1.0);
  std::vector<Sample> samples(static_cast<size_t>(count));
  for (Sample& sample : samples) {
    sample.tokens = std::clamp<int64_t>(static_cast<int64_t>(lengths(random)), 1, seq_len);
    const double tokens = static_cast<double>(sample.tokens);
    sample.cost = 15.15e9 * tokens + 294912.0 * tokens * tokens;
  }
  return samples;
}

TEST(MakePlan, KeepsManyRanksBusy) {
  const std::vector<Sample> samples = ManyLengths(2048, 8192);

  const Plan on_64 = Make(samples, {.seq_len = 8192, .ranks = 64});
  const Plan on_8 = Make(samples, {.seq_len = 8192, .ranks = 8});

  EXPECT_LE(on_64.makespan / on_64.ideal, 1.03);
  EXPECT_LE(on_8.makespan / on_8.ideal, 1.01);
}

TEST(MakePlan, TheBoundShowsThatLongSamplesRuleOutTheIdeal) {
  // One sample per rank and step is all that fits, and one of them costs ten times as much.
  std::vector<Sample> samples = OfLengths(std::vector<int64_t>(16, 60));
  samples[5].cost = 600;

  const Plan plan = Make(samples, {.seq_len = 100, .ranks = 8});

  EXPECT_GT(plan.lower_bound, 3 * plan.ideal);
  EXPECT_LE(plan.makespan, 1.03 * plan.lower_bound);
}

}  // namespace
}  // namespace lockstep::batching
