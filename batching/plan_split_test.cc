// Every guarantee of plans that split samples (PlanOptions::max_group), on random cases.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "batching/cost.h"
#include "batching/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::HasSubstr;

Plan Make(const std::vector<Sample>& samples, const PlanOptions& options) {
  absl::StatusOr<Plan> plan = MakePlan(samples, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan{};
}

// The tokens and the cost of the samples and shares that one rank holds in one step.
struct Held {
  int64_t tokens = 0;
  double cost = 0;
};

Held HeldBy(const Plan& plan, const MicroBatch& micro_batch, const std::vector<Sample>& samples,
            const PlanOptions& options) {
  Held held;
  for (const int64_t i : plan.samples_of(micro_batch)) {
    held.tokens += samples[static_cast<size_t>(i)].tokens;
    held.cost += samples[static_cast<size_t>(i)].cost;
  }
  for (const Share& share : plan.shares_of(micro_batch)) {
    const Sample& sample = samples[static_cast<size_t>(share.sample)];
    held.tokens += (sample.tokens + share.ranks - 1) / share.ranks;
    held.cost += sample.cost * (1 + options.split_overhead) / share.ranks;
  }
  return held;
}

// The groups of a step: by sample, the group's first rank and size, and the ranks
// that list a share.
using Groups = std::map<int64_t, std::pair<Share, std::vector<int>>>;

Groups GroupsOf(const Plan& plan, int64_t step) {
  Groups groups;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    for (const Share& share : plan.shares_of(plan.at(rank, step))) {
      const auto [it, is_first] = groups.try_emplace(share.sample, share, std::vector<int>());
      EXPECT_EQ(it->second.first.first_rank, share.first_rank) << "one group for a sample";
      EXPECT_EQ(it->second.first.ranks, share.ranks);
      it->second.second.push_back(rank);
    }
  }
  return groups;
}

// Ranks that are in two groups list them in one order: else they would exchange crosswise.
void ExpectOneOrder(const Plan& plan, int64_t step) {
  std::map<std::pair<int64_t, int64_t>, bool> is_before;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const auto shares = plan.shares_of(plan.at(rank, step));
    for (size_t i = 0; i < shares.size(); ++i) {
      for (size_t j = i + 1; j < shares.size(); ++j) {
        is_before[{shares[i].sample, shares[j].sample}] = true;
        EXPECT_FALSE(is_before.count({shares[j].sample, shares[i].sample}) > 0)
            << "rank " << rank << " lists samples in another order";
      }
    }
  }
}

void ExpectSound(const Plan& plan, const std::vector<Sample>& samples, const PlanOptions& options) {
  std::vector<int> times(samples.size(), 0);
  int64_t num_split = 0;
  double makespan = 0;
  for (int64_t step = 0; step < plan.micro_steps; ++step) {
    double most_expensive = 0;
    bool any_real = false;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const MicroBatch& micro_batch = plan.at(rank, step);
      EXPECT_EQ(micro_batch.kind, plan.at(0, step).kind) << "one kind at a step";
      const Held held = HeldBy(plan, micro_batch, samples, options);
      EXPECT_GT(held.tokens, 0) << "no micro-batch is empty";
      EXPECT_LE(held.tokens, options.seq_len);
      if (!micro_batch.padding) {
        EXPECT_NEAR(micro_batch.cost, held.cost, 1e-9 * (1 + held.cost));
        for (const int64_t i : plan.samples_of(micro_batch)) ++times[static_cast<size_t>(i)];
      }
      any_real |= !micro_batch.padding;
      most_expensive = std::max(most_expensive, micro_batch.cost);
    }
    EXPECT_TRUE(any_real) << "no step is padding alone";
    makespan += most_expensive;
    for (const auto& [sample, group] : GroupsOf(plan, step)) {
      const auto& [share, ranks] = group;
      std::vector<int> expected(static_cast<size_t>(share.ranks));
      std::iota(expected.begin(), expected.end(), share.first_rank);
      EXPECT_EQ(ranks, expected) << "each rank of the group has a share, and no other";
      EXPECT_EQ(share.first_rank % share.ranks, 0);
      EXPECT_LE(share.ranks, options.max_group);
      EXPECT_TRUE(samples[static_cast<size_t>(sample)].may_split);
      EXPECT_EQ(samples[static_cast<size_t>(sample)].kind, plan.at(share.first_rank, step).kind);
      EXPECT_LE(2 * share.ranks, samples[static_cast<size_t>(sample)].tokens);
      ++times[static_cast<size_t>(sample)];
      ++num_split;
    }
    ExpectOneOrder(plan, step);
  }
  EXPECT_THAT(times, ::testing::Each(1)) << "every sample is held once";
  EXPECT_EQ(plan.split_samples, num_split);
  EXPECT_NEAR(plan.makespan, makespan, 1e-9 * makespan);
  double cost = 0;
  for (const Sample& sample : samples) cost += sample.cost;
  EXPECT_NEAR(plan.ideal, cost / plan.ranks, 1e-9 * cost);
  EXPECT_LE(plan.lower_bound, plan.makespan * (1 + 1e-9));
}

struct RandomCase {
  std::vector<Sample> samples;
  PlanOptions options;
};

RandomCase MakeCase(std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  RandomCase c;
  c.options.seq_len = draw(1, 400);
  c.options.ranks = static_cast<int>(draw(1, 13));
  c.options.max_group = 1 << draw(0, 4);
  c.options.split_overhead = static_cast<double>(draw(0, 4)) * 0.05;
  const int64_t kinds = draw(1, 3), count = draw(0, 60), quadratic = draw(0, 2);
  for (int64_t i = 0; i < count; ++i) {
    Sample sample;
    // Many short ones and a few long ones.
    sample.tokens =
        draw(0, 9) == 0 ? draw(1, c.options.seq_len) : std::min(c.options.seq_len, draw(1, 20));
    const double n = static_cast<double>(sample.tokens);
    sample.cost = n + static_cast<double>(quadratic) * n * n / 100;
    sample.kind = static_cast<int>(draw(0, kinds - 1));
    sample.may_split = sample.kind != 2;
    c.samples.push_back(sample);
  }
  if (draw(0, 1) == 0 && kinds > 1) c.options.hosts = {{1, {0}}};
  return c;
}

TEST(PlanSplit, KeepsItsGuaranteesOnRandomCases) {
  std::mt19937 random(1);
  int64_t num_split = 0, num_better = 0;
  for (int i = 0; i < 3000; ++i) {
    const RandomCase c = MakeCase(random);
    SCOPED_TRACE(i);
    PlanOptions unsplit = c.options;
    unsplit.max_group = 1;

    const Plan plan = Make(c.samples, c.options);

    if (plan.split_samples > 0) ExpectSound(plan, c.samples, c.options);
    const Plan whole = Make(c.samples, unsplit);
    EXPECT_LE(plan.makespan, whole.makespan) << "never worse than the plan without splits";
    num_split += plan.split_samples;
    num_better += plan.makespan < whole.makespan ? 1 : 0;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_split, 1000);
  EXPECT_GT(num_better, 500);
}

// Ranks plan for themselves.
TEST(PlanSplit, IsTheSameEachTime) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const RandomCase c = MakeCase(random);
    const Plan one = Make(c.samples, c.options), two = Make(c.samples, c.options);
    EXPECT_EQ(one.samples, two.samples);
    ASSERT_EQ(one.shares.size(), two.shares.size());
    for (size_t s = 0; s < one.shares.size(); ++s) {
      EXPECT_EQ(one.shares[s].sample, two.shares[s].sample);
      EXPECT_EQ(one.shares[s].first_rank, two.shares[s].first_rank);
    }
  }
}

// The failure that splitting prevents, and the remedy: a step lasts as long as its longest
// sample.
TEST(PlanSplit, TwoRanksShareASampleThatIsLongerThanAllOthers) {
  std::vector<Sample> samples = {{.tokens = 90, .cost = 90, .may_split = true}};
  for (int i = 0; i < 6; ++i) samples.push_back({.tokens = 10, .cost = 10, .may_split = true});
  PlanOptions options = {.seq_len = 100, .ranks = 2};

  EXPECT_EQ(Make(samples, options).makespan, 90);

  options.max_group = 2;
  options.split_overhead = 0;
  const Plan plan = Make(samples, options);
  EXPECT_EQ(plan.makespan, 75);
  EXPECT_EQ(plan.split_samples, 1);
  EXPECT_EQ(plan.samples_of(plan.at(0, 0)).size(), 3u);
  ExpectSound(plan, samples, options);
}

// The workload of BENCHMARKS.md, in 20 draws.
TEST(PlanSplit, IsWithinAPercentOfTheIdealOnLognormalLengths) {
  const SequenceCost of_8b = *TransformerCost({.hidden_size = 4096,
                                               .num_hidden_layers = 36,
                                               .vocab_size = 151936,
                                               .num_attention_heads = 32,
                                               .num_key_value_heads = 8,
                                               .head_dim = 128,
                                               .intermediate_size = 12288});
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    std::lognormal_distribution<double> lengths(6, 1.3);
    std::vector<Sample> samples;
    for (int i = 0; i < 3000; ++i) {
      const int64_t tokens = std::clamp<int64_t>(static_cast<int64_t>(lengths(random)), 1, 16384);
      samples.push_back({.tokens = tokens,
                         .cost = CostOf(of_8b, tokens),
                         .kind = i % 3 == 0 ? 0 : 1,
                         .may_split = true});
    }
    const PlanOptions options = {.seq_len = 16384, .ranks = 64, .max_group = 8};

    const Plan plan = Make(samples, options);

    EXPECT_LE(plan.makespan, 1.01 * plan.ideal) << "seed " << seed;
    ExpectSound(plan, samples, options);
  }
}

TEST(PlanSplit, PiecesAreEvenAndCoverEachTokenOnce) {
  for (const int ranks : {2, 4, 8, 16}) {
    for (int64_t tokens = 1; tokens < 120; ++tokens) {
      std::vector<int> times(static_cast<size_t>(tokens), 0);
      std::vector<int64_t> counts;
      for (int place = 0; place < ranks; ++place) {
        int64_t count = 0, end = 0;
        for (const Piece& piece : PiecesOf(tokens, ranks, place)) {
          EXPECT_LE(end, piece.begin) << "pieces are in rising order";
          end = piece.end;
          count += piece.end - piece.begin;
          for (int64_t t = piece.begin; t < piece.end; ++t) ++times[static_cast<size_t>(t)];
        }
        EXPECT_LE(count, (tokens + ranks - 1) / ranks);
        counts.push_back(count);
      }
      EXPECT_THAT(times, ::testing::Each(1));
      EXPECT_LE(*std::max_element(counts.begin(), counts.end()),
                1 + *std::min_element(counts.begin(), counts.end()));
    }
  }
}

TEST(PlanSplit, NamesWhatItRefuses) {
  const std::vector<Sample> samples = {{.tokens = 9, .cost = 9, .may_split = true}};
  const auto message_of = [&](const PlanOptions& options) {
    return std::string(MakePlan(samples, options).status().message());
  };
  EXPECT_THAT(message_of({.seq_len = 9, .ranks = 2, .max_group = 3}),
              HasSubstr("max_group must be a power of two from 1 to 1048576, not 3"));
  EXPECT_THAT(message_of({.seq_len = 9, .max_group = 0}), HasSubstr("not 0"));
  EXPECT_THAT(message_of({.seq_len = 9, .max_group = 2, .split_overhead = -0.5}),
              HasSubstr("a finite number from 0 on, not -0.5"));
  EXPECT_THAT(message_of({.seq_len = 9,
                          .micro_batch_cost = [](absl::Span<const int64_t>) { return 1.0; },
                          .max_group = 2}),
              HasSubstr("give costs that add up over samples"));
  EXPECT_THAT(message_of({.seq_len = 9, .balance = Balance::kRoundRobin, .max_group = 2}),
              HasSubstr("which round_robin does not weigh"));
}

}  // namespace
}  // namespace lockstep::batching
