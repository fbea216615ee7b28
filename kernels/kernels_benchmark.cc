// OMP_NUM_THREADS=1 bazel run -c opt //kernels:kernels_benchmark
//
// Measures each kernel against a copy of as many bytes, and against the operators of ATen that it
// stands for. The three take turns, and their times are processor times of this process, so that
// other programs disturb them little. Counters, of the least times: GBps of the kernel, copy = its
// speed / the copy's, aten = its time / ATen's. Bytes are those that the kernel must read and
// write; the copy (a clone, which allocates as the kernel does) reads half of them. Those of a
// linear layer are its weight's. Forward and backward are separate; backward of ATen's chain is
// what autograd runs.

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
#include "kernels/adamw.h"
#include "kernels/kernels.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

struct Chain {
  const char* name;
  Function fused, composed;
  Function inputs;            // from {x}
  int64_t forward, backward;  // passes over x that must be read or written; backward 0: no gradient
  std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16};
};

at::Tensor PlainNorm(const at::Tensor& x, const at::Tensor& weight) {
  if (x.scalar_type() == at::kFloat) return at::rms_norm(x, {x.size(-1)}, weight, 1e-6);
  return weight * at::rms_norm(x, {x.size(-1)}, std::nullopt, 1e-6);
}

at::Tensor Leaf(const at::Tensor& x) { return x.clone().requires_grad_(true); }

at::Tensor Heads(const at::Tensor& x) { return x.view({x.size(0), -1, 128}); }

// The inputs of AdamW: parameter, gradient, moments, step, and the master of a bfloat16 parameter.
Tensors AdamWInputs(const Tensors& in) {
  const at::Tensor x = in[0].detach(), moment = x.to(at::kFloat);
  Tensors inputs = {x.clone(), x.clone(), moment.clone(), moment.square(),
                    at::ones({}, at::kFloat)};
  if (x.scalar_type() == at::kBFloat16) inputs.push_back(x.to(at::kFloat));
  return inputs;
}

Tensors FusedAdamW(const Tensors& in) {
  AdamWLists lists = {
      .params = in[0], .grads = in[1], .exp_avgs = in[2], .exp_avg_sqs = in[3], .steps = in[4]};
  if (in.size() > 5) lists.masters = in[5];
  AdamW(lists, {.lr = 1e-6});
  return {in[0]};
}

Tensors ComposedAdamW(const Tensors& in) {
  const at::Tensor param = in.size() > 5 ? in[5] : in[0];
  at::_fused_adamw_({param}, {in[1].to(at::kFloat)}, {in[2]}, {in[3]}, {}, {in[4]}, 1e-6, 0.9,
                    0.999, 1e-2, 1e-8, false, false);
  if (in.size() > 5) in[0].copy_(param);
  return {in[0]};
}

template <int64_t rows>
Tensors LinearInputs(const Tensors& in) {
  return {at::randn({rows, in[0].size(1)}).to(in[0].scalar_type()), in[0]};
}

Tensors FusedLinear(const Tensors& in) { return {Linear(in[0], in[1])}; }

Tensors ComposedLinear(const Tensors& in) { return {at::linear(in[0], in[1])}; }

const Chain kChains[] = {
    {"linear of 1 row", FusedLinear, ComposedLinear, LinearInputs<1>, 1, 0},
    {"linear of 4 rows", FusedLinear, ComposedLinear, LinearInputs<4>, 1, 0},
    {"adamw", FusedAdamW, ComposedAdamW, AdamWInputs, 7, 0, {at::kFloat}},
    {"adamw with masters", FusedAdamW, ComposedAdamW, AdamWInputs, 14, 0, {at::kBFloat16}},
    {"rms_norm", [](const Tensors& in) { return Tensors{RmsNorm(in[0], in[1], 1e-6)}; },
     [](const Tensors& in) { return Tensors{PlainNorm(in[0], in[1])}; },
     [](const Tensors& in) {
       return Tensors{Leaf(in[0]), Leaf(in[0][0])};
     },
     2, 3},
    {"add_rms_norm",
     [](const Tensors& in) {
       const auto [y, sum] = AddRmsNorm(in[0], in[1], in[2], 1e-6);
       return Tensors{y, sum};
     },
     [](const Tensors& in) {
       const at::Tensor sum = in[0] + in[1];
       return Tensors{PlainNorm(sum, in[2]), sum};
     },
     [](const Tensors& in) {
       return Tensors{Leaf(in[0]), Leaf(in[0]), Leaf(in[0][0])};
     },
     4, 4},
    {"swiglu", [](const Tensors& in) { return Tensors{Swiglu(in[0], in[1])}; },
     [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; },
     [](const Tensors& in) {
       return Tensors{Leaf(in[0]), Leaf(in[0])};
     },
     3, 5},
    {"rotate", [](const Tensors& in) { return Tensors{Rotate(in[0], in[1], in[2])}; },
     [](const Tensors& in) {
       return Tensors{at::addcmul(in[0] * in[1], at::roll(in[0], 64, -1), in[2])};
     },
     [](const Tensors& in) {
       const at::Tensor angles = Heads(in[0]).narrow(1, 0, 1).contiguous();
       return Tensors{Leaf(Heads(in[0])), angles, angles.clone()};
     },
     2, 2},
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

void Check(const Chain& chain, const Tensors& inputs) {
  const auto clones = [&] {
    Tensors result;
    for (const at::Tensor& input : inputs) result.push_back(input.detach().clone());
    return result;
  };
  const Tensors fused = chain.fused(clones()), composed = chain.composed(clones());
  for (size_t i = 0; i < fused.size(); ++i) {
    const double error = ((fused[i] - composed[i]).norm() / composed[i].norm()).item<double>();
    if (error < 0.01) continue;
    std::fprintf(stderr, "%s: result %zu differs from ATen's by %g\n", chain.name, i, error);
    std::abort();
  }
}

// One backward through an output that is kept, without the time of forward.
double SecondsOfBackward(const Function& function, const Tensors& inputs) {
  const Tensors outputs = function(inputs);
  Tensors gradients, leaves;
  for (const at::Tensor& output : outputs) gradients.push_back(output.detach());
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) leaves.push_back(input);
  }
  return Seconds([&] { torch::autograd::grad(outputs, leaves, gradients); });
}

void Measure(benchmark::State& state, const Chain& chain, at::ScalarType dtype, bool backward) {
  const at::Tensor x = at::randn({state.range(0), state.range(1)}).to(dtype);
  const Tensors inputs = chain.inputs({x});
  Check(chain, inputs);
  const int64_t bytes = (backward ? chain.backward : chain.forward) * x.numel() * x.element_size();
  const at::Tensor from = at::ones({bytes / 2}, at::kByte);
  double fused = std::numeric_limits<double>::max(), composed = fused, copy = fused;
  const at::NoGradGuard no_grad;
  for (auto unused : state) {
    if (backward) {
      const at::AutoGradMode grad(true);
      fused = std::min(fused, SecondsOfBackward(chain.fused, inputs));
      composed = std::min(composed, SecondsOfBackward(chain.composed, inputs));
    } else {
      fused = std::min(fused, Seconds([&] { chain.fused(inputs); }));
      composed = std::min(composed, Seconds([&] { chain.composed(inputs); }));
    }
    copy = std::min(copy, Seconds([&] { from.clone(); }));
  }
  state.counters["GBps"] = static_cast<double>(bytes) / fused / 1e9;
  state.counters["copy"] = copy / fused;
  state.counters["aten"] = fused / composed;
}

void Register() {
  for (const Chain& chain : kChains) {
    for (const at::ScalarType dtype : chain.dtypes) {
      for (const bool backward : {false, true}) {
        if (backward && chain.backward == 0) continue;
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
