// bazel run -c opt //batching:plan_benchmark
//
// Measures the time of a plan, and its makespan relative to the ideal (total cost / ranks: every
// rank always busy). Samples have lognormal(6.5, 1.0) tokens, at most 8,192. Their cost is the
// forward pass of an 8B decoder. RoundRobin only separates kinds: first-fit-decreasing packing,
// dealt out in order.
//
//    plan_benchmark --lengths=FILE --ranks=N    plans the lengths in FILE once:
//    plan_benchmark_peer.py's other half

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
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

std::vector<Sample> SamplesOf(const std::vector<int64_t>& lengths) {
  const SequenceCost cost = CostOf8B();
  std::vector<Sample> samples;
  for (const int64_t length : lengths) {
    samples.push_back(
        {.tokens = length, .cost = CostOf(cost, length), .least_cost = CostOf(cost, 1)});
  }
  return samples;
}

std::vector<int64_t> DrawLengths(int64_t count) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> tokens(6.5, 1.0);
  std::vector<int64_t> lengths(static_cast<size_t>(count));
  for (int64_t& length : lengths)
    length = std::clamp<int64_t>(static_cast<int64_t>(tokens(random)), 1, kSeqLen);
  return lengths;
}

void MakePlans(benchmark::State& state, Balance balance) {
  const std::vector<Sample> samples = SamplesOf(DrawLengths(state.range(0)));
  const PlanOptions options = {
      .seq_len = kSeqLen, .ranks = static_cast<int>(state.range(1)), .balance = balance};
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

void Lockstep(benchmark::State& state) { MakePlans(state, Balance::kLockstep); }
void RoundRobin(benchmark::State& state) { MakePlans(state, Balance::kRoundRobin); }

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

int PlanFile(const std::string& path, int ranks) {
  std::ifstream file(path);
  const std::vector<int64_t> lengths{std::istream_iterator<int64_t>(file),
                                     std::istream_iterator<int64_t>()};
  const std::vector<Sample> samples = SamplesOf(lengths);
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<Plan> plan = MakePlan(samples, {.seq_len = kSeqLen, .ranks = ranks});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", std::string(plan.status().message()).c_str());
    return 1;
  }
  std::printf("%.6f %.6f %d\n", seconds.count(), plan->makespan / plan->ideal,
              static_cast<int>(plan->micro_steps));
  return 0;
}

}  // namespace
}  // namespace lockstep::batching

int main(int argc, char** argv) {
  std::string lengths;
  int ranks = 0;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (absl::StartsWith(argument, "--lengths=")) lengths = std::string(argument.substr(10));
    if (absl::StartsWith(argument, "--ranks=")) ranks = std::atoi(argv[i] + 8);
  }
  if (!lengths.empty()) return lockstep::batching::PlanFile(lengths, ranks);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
