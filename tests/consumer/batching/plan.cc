// Another project's program: plans micro-batches with @lockstep//batching and prints who trains
// what.

#include "lockstep/batching/plan.h"

#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/status/statusor.h"

int main() {
  std::vector<lockstep::batching::Sample> samples;
  for (const int64_t tokens : {100, 90, 80, 70}) {
    samples.push_back({.tokens = tokens, .cost = static_cast<double>(tokens)});
  }
  const absl::StatusOr<lockstep::batching::Plan> plan =
      lockstep::batching::MakePlan(samples, {.seq_len = 100, .ranks = 2});
  if (!plan.ok()) return 1;
  for (int64_t step = 0; step < plan->micro_steps; ++step) {
    for (int rank = 0; rank < plan->ranks; ++rank) {
      std::printf("step %d rank %d:", static_cast<int>(step), rank);
      for (const int64_t sample : plan->samples_of(plan->at(rank, step)))
        std::printf(" sample %d", static_cast<int>(sample));
      std::printf("\n");
    }
  }
  return 0;
}
