// bazel build -c opt //kernels/attention:flash_benchmark
// OMP_NUM_THREADS=1 bazel-bin/kernels/attention/flash_benchmark 30
//
// Measures at::scaled_dot_product_attention's kernel for CPUs against ATen's own, forward and
// backward. The two take turns; the argument is the number of turns. Times are the least of them,
// in microseconds of the processor's time of all threads.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "kernels/attention/flash.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

double Microseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

double TimeOf(const std::function<void()>& run, bool ours) {
  ReplaceAtenFlashAttention(ours);
  run();  // warms the caches
  const double start = Microseconds();
  run();
  return Microseconds() - start;
}

void Check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& dy,
           bool causal) {
  const auto run = [&](bool ours) {
    ReplaceAtenFlashAttention(ours);
    const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal);
    std::vector<at::Tensor> results = torch::autograd::grad({y}, {q, k, v}, {dy});
    results.push_back(y);
    return results;
  };
  const std::vector<at::Tensor> ours = run(true), atens = run(false);
  for (size_t i = 0; i < ours.size(); ++i)
    TORCH_CHECK(at::allclose(ours[i], atens[i], 1e-3, 1e-4), "result ", i, " differs");
}

void Measure(at::ScalarType dtype, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
             bool causal, int turns) {
  const at::Tensor qkv = at::randn({batch, tokens, 3, heads, dim}, dtype).permute({2, 0, 3, 1, 4});
  const auto leaf = [&](int64_t i) { return qkv[i].detach().requires_grad_(true); };
  const at::Tensor q = leaf(0), k = leaf(1), v = leaf(2), dy = at::randn(q.sizes(), dtype);
  Check(q, k, v, dy, causal);
  const auto forward = [&] { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal); };
  const std::function<void()> both = [&] { torch::autograd::grad({forward()}, {q, k, v}, {dy}); };
  const std::function<void()> alone = [&] {
    const at::NoGradGuard no_grad;
    forward();
  };
  std::printf("%-7s %2ld x %2ld x %4ld x %3ld %-7s", toString(dtype), batch, heads, tokens, dim,
              causal ? "causal" : "");
  for (const auto& run : {alone, both}) {
    double ours = std::numeric_limits<double>::max(), atens = ours;
    for (int i = 0; i < turns; ++i) {
      ours = std::min(ours, TimeOf(run, true));
      atens = std::min(atens, TimeOf(run, false));
    }
    std::printf(" %10.1f %10.1f %5.2f", ours, atens, ours / atens);
  }
  std::printf("\n");
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::max(1, std::atoi(argv[1])) : 30;
  std::printf("%d threads\n%-38s %10s %10s %5s %10s %10s %5s\n", at::get_num_threads(),
              "dtype, batch x heads x tokens x dim", "forward", "ATen's", "ratio", "training",
              "ATen's", "ratio");
  constexpr struct {
    int64_t batch, heads, tokens, dim;
  } kShapes[] = {{1, 4, 16, 8},   {4, 4, 64, 32},    {1, 8, 128, 64}, {2, 8, 256, 64},
                 {1, 8, 512, 80}, {1, 4, 1000, 128}, {1, 2, 4096, 64}};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const auto& s : kShapes)
      for (const bool causal : {true, false})
        lockstep::kernels::Measure(dtype, s.batch, s.heads, s.tokens, s.dim, causal,
                                   s.tokens > 600 ? std::max(1, turns / 5) : turns);
}
