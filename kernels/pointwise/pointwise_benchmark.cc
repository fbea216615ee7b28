// OMP_NUM_THREADS=1 bazel run -c opt //kernels/pointwise:pointwise_benchmark
//
// Measures fused functions against a copy of as many bytes, and against the same operators of ATen
// one after the other. The three take turns, and their times are processor times of this process,
// so that other programs disturb them little. Counters, of the least times: GBps of the fused
// function, copy = its speed / the copy's, aten = its time / ATen's. Bytes are those that it must
// read and write; the copy (a clone, which allocates as the fused function does) reads half of
// them. Backward of ATen's chain is what autograd runs.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "benchmark/benchmark.h"
#include "kernels/pointwise/fuse.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Chain {
  const char* name;
  PointwiseFunction function;
  size_t num_inputs;
  int64_t forward, backward;  // passes over x that must be read or written
};

const Chain kChains[] = {
    {"silu(x) * y", [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; }, 2, 3, 5},
    {"x * y + z", [](const Tensors& in) { return Tensors{in[0] * in[1] + in[2]}; }, 3, 4, 6},
    {"gelu(x) * y, tanh",
     [](const Tensors& in) { return Tensors{at::gelu(in[0], "tanh") * in[1]}; }, 2, 3, 5},
    {"10 operators",
     [](const Tensors& in) {
       const at::Tensor x = in[0] * 0.5 + in[1], gate = in[1].sigmoid();
       return Tensors{at::where(x > 0, x, 0.1 * x) * gate +
                      in[0].abs().sqrt() / (1 + in[1].square())};
     },
     2, 3, 5},
};

double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Seconds(const std::function<void()>& call) {
  const double start = ProcessorSeconds();
  call();
  return ProcessorSeconds() - start;
}

// One backward through an output that is kept, without the time of forward.
double SecondsOfBackward(const PointwiseFunction& function, const Tensors& inputs) {
  const Tensors outputs = function(inputs);
  const Tensors gradients = {outputs[0].detach()};
  return Seconds([&] { torch::autograd::grad(outputs, inputs, gradients); });
}

void Check(const Chain& chain, const PointwiseFunction& fused, const Tensors& inputs) {
  const at::Tensor actual = fused(inputs)[0], expected = chain.function(inputs)[0];
  const double error = ((actual - expected).norm() / expected.norm()).item<double>();
  if (error < 0.01) return;
  std::fprintf(stderr, "%s differs from ATen's by %g\n", chain.name, error);
  std::abort();
}

void Measure(benchmark::State& state, const Chain& chain, at::ScalarType dtype, bool backward) {
  Tensors inputs;
  for (size_t i = 0; i < chain.num_inputs; ++i)
    inputs.push_back(at::randn({state.range(0), state.range(1)}).to(dtype).requires_grad_(true));
  FusedFunction function(chain.function);
  const PointwiseFunction fused = [&](const Tensors& in) {
    return function(std::vector<PointwiseArgument>(in.begin(), in.end()));
  };
  Check(chain, fused, inputs);
  const int64_t passes = backward ? chain.backward : chain.forward;
  const int64_t bytes = passes * inputs[0].numel() * inputs[0].element_size();
  const at::Tensor from = at::ones({bytes / 2}, at::kByte);
  double ours = std::numeric_limits<double>::max(), composed = ours, copy = ours;
  const at::NoGradGuard no_grad;
  for (auto unused : state) {
    if (backward) {
      const at::AutoGradMode grad(true);
      ours = std::min(ours, SecondsOfBackward(fused, inputs));
      composed = std::min(composed, SecondsOfBackward(chain.function, inputs));
    } else {
      ours = std::min(ours, Seconds([&] { fused(inputs); }));
      composed = std::min(composed, Seconds([&] { chain.function(inputs); }));
    }
    copy = std::min(copy, Seconds([&] { from.clone(); }));
  }
  state.counters["GBps"] = static_cast<double>(bytes) / ours / 1e9;
  state.counters["copy"] = copy / ours;
  state.counters["aten"] = ours / composed;
}

void Register() {
  for (const Chain& chain : kChains) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool backward : {false, true}) {
        const std::string name =
            std::string(chain.name) + (backward ? ", backward, " : ", ") + c10::toString(dtype);
        const auto measure = [&chain, dtype, backward](benchmark::State& state) {
          Measure(state, chain, dtype, backward);
        };
        // A fixed number of turns: the least time counts.
        benchmark::RegisterBenchmark(name.c_str(), measure)->Args({64, 128})->Iterations(1000);
        benchmark::RegisterBenchmark(name.c_str(), measure)->Args({512, 1024})->Iterations(30);
        benchmark::RegisterBenchmark(name.c_str(), measure)->Args({4096, 4096})->Iterations(4);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  lockstep::kernels::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
