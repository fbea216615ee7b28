// bazel build -c opt //kernels/attention:attention_benchmark
// OMP_NUM_THREADS=2 bazel-bin/kernels/attention/attention_benchmark 15
//
// Measures attention over the sequences of a row, forward and backward, as one operator and as a
// loop of ATen's at::scaled_dot_product_attention. The two take turns; the argument is the number
// of turns. Times are medians in microseconds: of the clock, and of the processor's time of all
// threads. Checks first that results and gradients are close.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "c10/util/Exception.h"
#include "kernels/attention/attention.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors()>;

constexpr int64_t kHeads = 8, kKeyHeads = 4, kDim = 64;

struct Row {
  const char* name;
  std::vector<int64_t> seq_lens;
};

std::vector<Row> Rows() {
  std::vector<int64_t> mixed(9, 64);
  mixed[0] = 2048;
  return {{"1 x 16", {16}},
          {"64 x 32", std::vector<int64_t>(64, 32)},
          {"8 x 256", std::vector<int64_t>(8, 256)},
          {"32 to 512", {32, 48, 64, 96, 128, 120, 160, 512}},
          {"2048, 8 x 64", mixed},
          {"1 x 1024", {1024}}};
}

double Microseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Times {
  std::vector<double> wall, processor;

  void Take(const Function& run) {
    const double wall_start = Microseconds(CLOCK_MONOTONIC);
    const double processor_start = Microseconds(CLOCK_PROCESS_CPUTIME_ID);
    run();
    processor.push_back(Microseconds(CLOCK_PROCESS_CPUTIME_ID) - processor_start);
    wall.push_back(Microseconds(CLOCK_MONOTONIC) - wall_start);
  }
};

void Measure(const Row& row, at::ScalarType dtype, bool needs_gradients, int turns) {
  int64_t tokens = 0;
  for (const int64_t length : row.seq_lens) tokens += length;
  const auto random = [&](int64_t heads) {
    return at::randn({tokens, heads, kDim}).to(dtype).requires_grad_(needs_gradients);
  };
  const at::Tensor q = random(kHeads), k = random(kKeyHeads), v = random(kKeyHeads);
  const at::Tensor dy = at::randn({tokens, kHeads, kDim}).to(dtype);
  const auto with = [&](auto attention) {
    return [&, attention]() -> Tensors {
      const at::Tensor y = attention(q, k, v, row.seq_lens, AttentionOptions{});
      if (!needs_gradients) return {y};
      return torch::autograd::grad({y}, {q, k, v}, {dy});
    };
  };
  const Function one = with(Attention), loop = with(AttentionBySequence);
  const Tensors ours = one(), expected = loop();
  for (size_t i = 0; i < ours.size(); ++i)
    TORCH_CHECK(at::allclose(ours[i], expected[i], 1e-3, 1e-4), "result ", i, " differs");
  Times fused, looped;
  for (int i = 0; i < turns; ++i) {
    fused.Take(one);
    looped.Take(loop);
  }
  const double wall = Median(fused.wall), loop_wall = Median(looped.wall);
  const double processor = Median(fused.processor), loop_processor = Median(looped.processor);
  std::printf("%-9s %-12s %-8s %9.0f %9.0f %6.2f %9.0f %9.0f %6.2f\n", toString(dtype), row.name,
              needs_gradients ? "training" : "forward", wall, loop_wall, wall / loop_wall,
              processor, loop_processor, processor / loop_processor);
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::atoi(argv[1]) : 15;
  std::printf("%d threads\n%-9s %-12s %-8s %9s %9s %6s %9s %9s %6s\n", at::get_num_threads(),
              "dtype", "row", "", "wall", "loop", "ratio", "processor", "loop", "ratio");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const auto& row : lockstep::kernels::Rows())
      for (const bool needs_gradients : {true, false})
        lockstep::kernels::Measure(row, dtype, needs_gradients, turns);
}
