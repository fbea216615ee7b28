// bazel run -c opt //batching:plan_benchmark
//
// Measures the time of a plan, and its makespan relative to the ideal (total cost / ranks: every
// rank always busy). Samples have lognormal(6.5, 1.0) tokens, at most 8,192. Their cost is the
// forward pass of an 8B decoder. RoundRobin only separates kinds: first-fit-decreasing packing,
// dealt out in order. In Mixed and Apart every fifth sample has an image. Texts may ride with
// images in Mixed, and not in Apart. In Split and Unsplit samples have lognormal(6, 1.3) tokens, at
// most 16,384, and a third have an image; Split may split a sample over 8 ranks, at 5 % of
// overhead.
//
//    plan_benchmark --lengths=FILE --ranks=N [--apart]
//
// plans the samples in FILE once, each a line with its length and its kind (0: image, 1: text):
// plan_benchmark_peer.py's other half.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "batching/cost.h"
#include "batching/plan.h"
#include "benchmark/benchmark.h"

namespace lockstep::batching {
namespace {

constexpr int64_t kSeqLen = 8192;

// Qwen3-8B's shape.
SequenceCost CostOf8B() {
  return *TransformerCost({.hidden_size = 4096,
                           .num_hidden_layers = 36,
                           .vocab_size = 151936,
                           .num_attention_heads = 32,
                           .num_key_value_heads = 8,
                           .head_dim = 128,
                           .intermediate_size = 12288});
}

constexpr int kImage = 0, kText = 1;

Sample SampleOf(int64_t length, int kind) {
  static const SequenceCost kCost = CostOf8B();
  return {.tokens = length,
          .cost = CostOf(kCost, length),
          .kind = kind,
          .least_cost = CostOf(kCost, 1)};
}

std::vector<int64_t> DrawLengths(int64_t count) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> tokens(6.5, 1.0);
  std::vector<int64_t> lengths(static_cast<size_t>(count));
  for (int64_t& length : lengths)
    length = std::clamp<int64_t>(static_cast<int64_t>(tokens(random)), 1, kSeqLen);
  return lengths;
}

// Every `image_every`-th sample has an image; none if it is 0.
void MakePlans(benchmark::State& state, PlanOptions options, size_t image_every = 0) {
  std::vector<Sample> samples;
  for (const int64_t length : DrawLengths(state.range(0))) {
    const bool is_image = image_every > 0 && samples.size() % image_every == 0;
    samples.push_back(SampleOf(length, is_image ? kImage : kText));
  }
  options.seq_len = kSeqLen;
  options.ranks = static_cast<int>(state.range(1));
  absl::StatusOr<Plan> plan;
  for (auto _ : state) {
    plan = MakePlan(samples, options);
    benchmark::DoNotOptimize(plan);
  }
  if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());
  const double room = static_cast<double>(plan->micro_steps * plan->ranks * kSeqLen);
  state.counters["makespan/ideal"] = plan->makespan / plan->ideal;
  state.counters["makespan/bound"] = plan->makespan / plan->lower_bound;
  state.counters["micro_steps"] = static_cast<double>(plan->micro_steps);
  state.counters["packing"] = static_cast<double>(plan->tokens) / room;
}

void Lockstep(benchmark::State& state) { MakePlans(state, {}); }
void RoundRobin(benchmark::State& state) { MakePlans(state, {.balance = Balance::kRoundRobin}); }
void Mixed(benchmark::State& state) { MakePlans(state, {.hosts = {{kText, {kImage}}}}, 5); }
void Apart(benchmark::State& state) { MakePlans(state, {}, 5); }

void MakeSplitPlans(benchmark::State& state, int max_group) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> tokens(6, 1.3);
  std::vector<Sample> samples(static_cast<size_t>(state.range(0)));
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t length = std::clamp<int64_t>(static_cast<int64_t>(tokens(random)), 1, 16384);
    samples[i] = SampleOf(length, i % 3 == 0 ? kImage : kText);
    samples[i].may_split = true;
  }
  const PlanOptions options = {.seq_len = 16384,
                               .ranks = static_cast<int>(state.range(1)),
                               .hosts = {{kText, {kImage}}},
                               .max_group = max_group};
  absl::StatusOr<Plan> plan;
  for (auto _ : state) {
    plan = MakePlan(samples, options);
    benchmark::DoNotOptimize(plan);
  }
  if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());
  state.counters["makespan/ideal"] = plan->makespan / plan->ideal;
  state.counters["bound/ideal"] = plan->lower_bound / plan->ideal;
  state.counters["micro_steps"] = static_cast<double>(plan->micro_steps);
  state.counters["split"] = static_cast<double>(plan->split_samples);
}

void Split(benchmark::State& state) { MakeSplitPlans(state, 8); }
void Unsplit(benchmark::State& state) { MakeSplitPlans(state, 1); }

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({512, 8})
      ->Args({2048, 8})
      ->Args({2048, 64})
      ->Args({32768, 64})
      ->Args({1000000, 1024});
  benchmark->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->ArgNames({"samples", "ranks"});
}
BENCHMARK(Lockstep)->Apply(Sizes);
BENCHMARK(RoundRobin)->Apply(Sizes);
BENCHMARK(Mixed)->Apply(Sizes);
BENCHMARK(Apart)->Apply(Sizes);

void SizesOfSplits(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({3000, 64})->Args({1000000, 1024});
  benchmark->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->ArgNames({"samples", "ranks"});
}
BENCHMARK(Split)->Apply(SizesOfSplits);
BENCHMARK(Unsplit)->Apply(SizesOfSplits);

int PlanFile(const std::string& path, PlanOptions options) {
  std::ifstream file(path);
  std::vector<Sample> samples;
  int64_t length = 0;
  for (int kind = 0; file >> length >> kind;) samples.push_back(SampleOf(length, kind));
  options.seq_len = kSeqLen;
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<Plan> plan = MakePlan(samples, options);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", std::string(plan.status().message()).c_str());
    return 1;
  }
  std::printf("%.6f %.6f %d %d\n", seconds.count(), plan->makespan / plan->ideal,
              static_cast<int>(plan->micro_steps), static_cast<int>(plan->padding_micro_batches));
  return 0;
}

}  // namespace
}  // namespace lockstep::batching

int main(int argc, char** argv) {
  std::string lengths;
  lockstep::batching::PlanOptions options;
  options.hosts = {{lockstep::batching::kText, {lockstep::batching::kImage}}};
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (absl::StartsWith(argument, "--lengths=")) lengths = std::string(argument.substr(10));
    if (absl::StartsWith(argument, "--ranks=")) options.ranks = std::atoi(argv[i] + 8);
    if (argument == "--apart") options.hosts.clear();
  }
  if (!lengths.empty()) return lockstep::batching::PlanFile(lengths, options);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
