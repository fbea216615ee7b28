// Tests plans in which samples of one kind ride in micro-batches of another (PlanOptions::hosts).

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "batching/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Hosts = std::map<int, std::set<int>>;

// Image and text.
constexpr int kImage = 0, kText = 1;
const Hosts& TextInImages() {
  static const Hosts* const kHosts = new Hosts{{kText, {kImage}}};
  return *kHosts;
}

Sample Of(int kind, int64_t tokens) {
  return {.tokens = tokens, .cost = static_cast<double>(tokens), .kind = kind, .least_cost = 1};
}

Plan Make(const std::vector<Sample>& samples, const PlanOptions& options) {
  absl::StatusOr<Plan> plan = MakePlan(samples, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan{};
}

bool MayHold(const Hosts& hosts, int kind, int rider) {
  const auto found = hosts.find(rider);
  return kind == rider || (found != hosts.end() && found->second.count(kind) > 0);
}

// Everything that the header promises, where samples may ride.
void ExpectSound(const Plan& plan, const std::vector<Sample>& samples, const PlanOptions& options) {
  std::vector<int> times(samples.size(), 0);
  double makespan = 0;
  int last_kind = -1;
  for (int64_t step = 0; step < plan.micro_steps; ++step) {
    const int kind = plan.at(0, step).kind;
    EXPECT_GE(kind, last_kind) << "steps come in order of kind";
    last_kind = kind;
    double most_expensive = 0;
    bool any_padding = false;
    int most_of_kind = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const MicroBatch& micro_batch = plan.at(rank, step);
      EXPECT_EQ(micro_batch.kind, kind) << "one kind at a step";
      int64_t tokens = 0;
      int of_kind = 0;
      double cost = 0;
      for (const int64_t i : plan.samples_of(micro_batch)) {
        const Sample& sample = samples[static_cast<size_t>(i)];
        EXPECT_TRUE(MayHold(options.hosts, kind, sample.kind)) << sample.kind << " in " << kind;
        tokens += sample.tokens;
        cost += sample.cost;
        of_kind += sample.kind == kind ? 1 : 0;
        if (!micro_batch.padding) ++times[static_cast<size_t>(i)];
      }
      EXPECT_GE(of_kind, 1) << "no module of the kind would run";
      EXPECT_LE(tokens, options.seq_len);
      if (!micro_batch.padding && !options.micro_batch_cost) {
        EXPECT_NEAR(micro_batch.cost, cost, 1e-9 * cost);
      }
      if (!micro_batch.padding) most_of_kind = std::max(most_of_kind, of_kind);
      any_padding |= micro_batch.padding;
      most_expensive = std::max(most_expensive, micro_batch.cost);
    }
    if (any_padding) {
      EXPECT_EQ(most_of_kind, 1) << "no rank pads while another could share";
    }
    makespan += most_expensive;
  }
  EXPECT_THAT(times, ::testing::Each(1)) << "every sample is in one micro-batch";
  EXPECT_DOUBLE_EQ(plan.makespan, makespan);
  EXPECT_LE(plan.lower_bound, plan.makespan * (1 + 1e-9));
  if (!options.micro_batch_cost) {
    EXPECT_LE(plan.ideal, plan.lower_bound * (1 + 1e-9));
  }
}

TEST(PlanRide, TextFillsTheRoomOfAnImageBatch) {
  const std::vector<Sample> samples = {Of(kImage, 3), Of(kText, 2)};
  PlanOptions options = {.seq_len = 8, .ranks = 2};
  const Plan apart = Make(samples, options);
  options.hosts = TextInImages();

  const Plan plan = Make(samples, options);

  EXPECT_EQ(apart.micro_steps, 2);
  EXPECT_EQ(apart.padding_micro_batches, 2);
  EXPECT_EQ(plan.micro_steps, 1);
  EXPECT_EQ(plan.padding_micro_batches, 1);
  EXPECT_EQ(plan.makespan, apart.makespan);
  const auto real = std::find_if(plan.micro_batches.begin(), plan.micro_batches.end(),
                                 [](const MicroBatch& m) { return !m.padding; });
  EXPECT_EQ(real->kind, kImage);
  EXPECT_THAT(plan.samples_of(*real), ElementsAre(0, 1));
  ExpectSound(plan, samples, options);
}

TEST(PlanRide, NoImageRidesInATextBatch) {
  const std::vector<Sample> samples = {Of(kText, 3), Of(kText, 3), Of(kImage, 2)};
  const PlanOptions options = {.seq_len = 8, .ranks = 2, .hosts = TextInImages()};

  const Plan plan = Make(samples, options);

  ExpectSound(plan, samples, options);
  EXPECT_EQ(plan.at(0, 0).kind, kImage);
}

TEST(PlanRide, TextFillsTheTimeInWhichRanksWouldWait) {
  // Rank 1 would wait for 5 of the first step's 8, and the texts would take a step of 5.
  const std::vector<Sample> samples = {Of(kImage, 8), Of(kImage, 3), Of(kText, 3), Of(kText, 2)};
  PlanOptions options = {.seq_len = 8, .ranks = 2};
  EXPECT_EQ(Make(samples, options).makespan, 11);
  options.hosts = TextInImages();

  const Plan plan = Make(samples, options);

  EXPECT_EQ(plan.makespan, 8);
  EXPECT_EQ(plan.lower_bound, 8);
  ExpectSound(plan, samples, options);
}

TEST(PlanRide, RoundRobinKeepsKindsApart) {
  const std::vector<Sample> samples = {Of(kImage, 3), Of(kText, 2)};

  const Plan plan =
      Make(samples,
           {.seq_len = 8, .ranks = 2, .balance = Balance::kRoundRobin, .hosts = TextInImages()});

  EXPECT_EQ(plan.micro_steps, 2);
  EXPECT_EQ(plan.lower_bound, 5);
}

TEST(PlanRide, HostsThatAreNoOrderAreAnError) {
  for (const Hosts& hosts :
       {Hosts{{1, {1}}}, Hosts{{1, {0}}, {0, {1}}}, Hosts{{2, {1}}, {1, {0}}}}) {
    const absl::StatusOr<Plan> plan =
        MakePlan({Of(0, 1)}, {.seq_len = 8, .ranks = 2, .hosts = hosts});
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr("no kind hosts itself"));
  }
}

struct Workload {
  std::vector<Sample> samples;
  PlanOptions options;
};

// Orders of kinds: text below image; a chain; and text and two modalities below both together.
const std::vector<Hosts>& Orders() {
  static const auto* const kOrders = new std::vector<Hosts>{
      TextInImages(),
      {{2, {0, 1}}, {1, {0}}},
      {{3, {0, 1, 2}}, {1, {0}}, {2, {0}}},
      {{2, {0}}},
  };
  return *kOrders;
}

Workload RandomWorkload(std::mt19937& random, int most_samples) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Workload workload;
  PlanOptions& options = workload.options;
  options.seq_len = draw(1, 64);
  options.ranks = static_cast<int>(draw(1, 9));
  options.worth_a_step = draw(0, 2) == 0 ? 0 : draw(0, 1) == 0 ? 0.005 : 1;
  options.hosts = Orders()[static_cast<size_t>(draw(0, 3))];
  const int64_t shape = draw(0, 2);
  const int64_t longest = draw(0, 1) == 0 ? options.seq_len : 1 + options.seq_len / 4;
  workload.samples.resize(static_cast<size_t>(draw(0, most_samples)));
  for (Sample& sample : workload.samples) {
    sample.tokens = draw(1, longest);
    const double tokens = static_cast<double>(sample.tokens);
    sample.kind = static_cast<int>(draw(0, 3));
    // An image's tower costs, too. Costs need not follow tokens at all.
    sample.cost = shape == 0   ? tokens + (sample.kind == 0 ? 3 * tokens : 0)
                  : shape == 1 ? tokens + 0.1 * tokens * tokens
                               : static_cast<double>(draw(0, 5));
    sample.least_cost = std::min(sample.cost, 1.0);
  }
  return workload;
}

TEST(PlanRide, NeverMakesAPlanWorseOnTenThousandRandomWorkloads) {
  int shorter = 0, fewer_steps = 0;
  for (unsigned seed = 0; seed < 10000; ++seed) {
    std::mt19937 random(seed);
    Workload workload = RandomWorkload(random, 60);
    PlanOptions apart = workload.options;
    apart.hosts = {};
    if (seed % 8 == 0) {
      for (PlanOptions* options : {&workload.options, &apart}) {
        options->micro_batch_cost = [&samples =
                                         workload.samples](absl::Span<const int64_t> members) {
          double cost = 7;  // for each micro-batch: a plan with fewer of them is better
          for (const int64_t i : members) cost += samples[static_cast<size_t>(i)].cost;
          return cost;
        };
      }
    }

    const Plan without = Make(workload.samples, apart);
    const Plan with = Make(workload.samples, workload.options);

    ExpectSound(with, workload.samples, workload.options);
    EXPECT_LE(with.makespan, without.makespan * (1 + 1e-9));
    EXPECT_LE(with.micro_steps, without.micro_steps);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    shorter += with.makespan < without.makespan * (1 - 1e-9) ? 1 : 0;
    fewer_steps += with.micro_steps < without.micro_steps ? 1 : 0;
  }
  EXPECT_GT(shorter, 3000);
  EXPECT_GT(fewer_steps, 3000);
}

// Returns the least makespan of all plans. Tries every way to put samples into bins. A bin has the
// kind of one of its samples, which must host the others. The bins of a kind are sorted into steps.
double BestOfAllPlans(const std::vector<Sample>& samples, const PlanOptions& options) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::vector<size_t>> bins;
  const auto evaluate = [&] {
    std::map<int, std::vector<double>> costs;
    for (const std::vector<size_t>& bin : bins) {
      int kind = -1;
      double cost = 0;
      for (const size_t i : bin) {
        const int candidate = samples[i].kind;
        cost += samples[i].cost;
        if (std::all_of(bin.begin(), bin.end(), [&](size_t other) {
              return MayHold(options.hosts, candidate, samples[other].kind);
            }))
          kind = candidate;
      }
      if (kind < 0) return;
      costs[kind].push_back(cost);
    }
    double makespan = 0;
    for (auto& [kind, of_kind] : costs) {
      std::sort(of_kind.begin(), of_kind.end(), std::greater<>());
      for (size_t s = 0; s < of_kind.size(); s += static_cast<size_t>(options.ranks))
        makespan += of_kind[s];
    }
    best = std::min(best, makespan);
  };
  const std::function<void(size_t)> place = [&](size_t i) {
    if (i == samples.size()) return evaluate();
    for (size_t b = 0; b <= bins.size(); ++b) {
      const bool is_new = b == bins.size();
      if (is_new) bins.emplace_back();
      int64_t tokens = samples[i].tokens;
      for (const size_t other : bins[b]) tokens += samples[other].tokens;
      if (tokens <= options.seq_len) {
        bins[b].push_back(i);
        place(i + 1);
        bins[b].pop_back();
      }
      if (is_new) {
        bins.pop_back();
        break;
      }
    }
  };
  place(0);
  return best;
}

TEST(PlanRide, IsNearTheBestOfAllPlans) {
  double worst = 1, sum = 0, sum_apart = 0;
  constexpr int kCases = 300;
  for (unsigned seed = 0; seed < kCases; ++seed) {
    std::mt19937 random(seed);
    Workload workload = RandomWorkload(random, 7);
    workload.samples.resize(std::max<size_t>(workload.samples.size(), 1), Of(0, 1));
    for (Sample& sample : workload.samples) sample.cost = std::max(sample.cost, 1.0);
    workload.options.ranks = 1 + static_cast<int>(seed % 3);
    workload.options.worth_a_step = 0;
    PlanOptions apart = workload.options;
    apart.hosts = {};

    const Plan plan = Make(workload.samples, workload.options);

    const double best = BestOfAllPlans(workload.samples, workload.options);
    EXPECT_GE(plan.makespan, best * (1 - 1e-9)) << "the oracle missed a plan";
    EXPECT_LE(plan.lower_bound, best * (1 + 1e-9)) << "the bound is none";
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    worst = std::max(worst, plan.makespan / best);
    sum += plan.makespan / best;
    sum_apart += Make(workload.samples, apart).makespan / best;
  }
  RecordProperty("mean", std::to_string(sum / kCases));
  RecordProperty("mean without riders", std::to_string(sum_apart / kCases));
  EXPECT_LE(worst, 4.0 / 3);
  EXPECT_LE(sum / kCases, 1.01);
  EXPECT_GE(sum_apart / kCases, 1.02);
}

}  // namespace
}  // namespace lockstep::batching
