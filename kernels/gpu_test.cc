// Tests that need a GPU: the kernels there against those of the CPU in float64, which the other
// tests prove.

#include <cstdint>
#include <functional>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/inputs.h"
#include "kernels/kernels.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using tests::RelativeError;
using Tensors = std::vector<at::Tensor>;

struct Chain {
  const char* name;
  std::function<Tensors(const Tensors&)> run;
  std::function<Tensors(int64_t rows, int64_t size)> inputs;  // float64
  size_t num_differentiable;
};

at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

const Chain kChains[] = {
    {"rms_norm", [](const Tensors& in) { return Tensors{RmsNorm(in[0], in[1], 1e-5)}; },
     [](int64_t rows, int64_t size) {
       return Tensors{Random({rows, size}), Random({size})};
     },
     2},
    {"add_rms_norm",
     [](const Tensors& in) {
       const auto [y, sum] = AddRmsNorm(in[0], in[1], in[2], 1e-5);
       return Tensors{y, sum};
     },
     [](int64_t rows, int64_t size) {
       return Tensors{Random({rows, size}), Random({rows, size}), Random({size})};
     },
     3},
    {"swiglu", [](const Tensors& in) { return Tensors{Swiglu(in[0], in[1])}; },
     [](int64_t rows, int64_t size) {
       return Tensors{Random({rows, size}), Random({rows, size})};
     },
     2},
    {"rotate", [](const Tensors& in) { return Tensors{Rotate(in[0], in[1], in[2])}; },
     [](int64_t rows, int64_t size) {
       size += size % 2;
       return Tensors{Random({rows, 3, size}), Random({rows, 1, size}), Random({rows, 1, size})};
     },
     1},
    {"cross_entropy",
     [](const Tensors& in) {
       const auto integers = in[0].options().dtype(at::kLong);
       at::Tensor target = (at::arange(in[0].size(0), integers) * 7).remainder(in[0].size(1));
       target = target.masked_fill(target.remainder(5) == 4, -100);
       const auto [loss, lse, entropy] =
           CrossEntropy(in[0], target, {.label_smoothing = 0.1, .z_loss = 0.01}, true);
       return Tensors{loss, lse, entropy};
     },
     [](int64_t rows, int64_t size) {
       return Tensors{Random({rows, size}) * 4};
     },
     1}};

// The outputs, then the gradients.
Tensors Results(const Chain& chain, const Tensors& inputs, const at::TensorOptions& options) {
  Tensors leaves, wanted;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(
        input.to(options).detach().requires_grad_(leaves.size() < chain.num_differentiable));
    if (leaves.back().requires_grad()) wanted.push_back(leaves.back());
  }
  Tensors results = chain.run(leaves);
  at::Tensor sum = at::zeros({}, options.dtype(at::kDouble));
  for (const at::Tensor& result : results) {
    const at::Tensor factors = at::arange(result.numel(), options.dtype(at::kDouble)).add(1).sin();
    sum = sum + (result.to(at::kDouble) * factors.view(result.sizes())).sum();
  }
  for (const at::Tensor& gradient : torch::autograd::grad({sum}, wanted))
    results.push_back(gradient);
  return results;
}

TEST(KernelsOnGpu, AreLinked) { EXPECT_TRUE(HasKernels(at::ones({1}, at::kCUDA))); }

TEST(KernelsOnGpu, AgreeWithTheCpuAtEverySizeAndDtype) {
  at::manual_seed(1);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}};
  for (const Chain& chain : kChains) {
    for (const int64_t rows : {0, 1, 17, 300}) {
      for (const int64_t size : {2, 7, 64, 130, 1024, 4099}) {
        const Tensors inputs = chain.inputs(rows, size);
        for (const auto& [dtype, tolerance] : tolerances) {
          Tensors rounded;
          for (const at::Tensor& input : inputs) rounded.push_back(input.to(dtype).to(at::kDouble));
          const Tensors truth = Results(chain, rounded, at::kDouble);

          const Tensors actual = Results(chain, rounded, at::device(at::kCUDA).dtype(dtype));

          for (size_t i = 0; i < truth.size(); ++i) {
            const double error = (actual[i].cpu().to(at::kDouble) - truth[i]).norm().item<double>();
            EXPECT_LE(error, tolerance * (1 + truth[i].norm().item<double>()))
                << chain.name << " " << rows << " x " << size << ", " << dtype << ", result " << i;
          }
        }
      }
    }
  }
}

// Three steps of parameters of these dtypes on a device; returns the parameters and the moments.
Tensors Train(at::Device device, at::ScalarType param, at::ScalarType moment, bool has_master,
              const std::vector<int64_t>& salts) {
  Tensors params, first, second, masters, steps;
  at::manual_seed(2);
  for (size_t i = 0; i < 45; ++i) {  // more than one launch takes
    const int64_t numbers = i == 3 ? 40000 : static_cast<int64_t>(i * i * 3);
    params.push_back(at::randn({numbers}).to(device, param));
    first.push_back(at::zeros_like(params.back(), moment));
    second.push_back(first.back().clone());
    if (has_master) masters.push_back(params.back().to(at::kFloat));
    steps.push_back(at::zeros({}, at::device(device).dtype(at::kFloat)));
  }
  for (int step = 0; step < 3; ++step) {
    Tensors grads;
    for (const at::Tensor& weight : params)
      grads.push_back(at::randn(weight.sizes()).to(device, param));
    AdamW({.params = params,
           .grads = grads,
           .exp_avgs = first,
           .exp_avg_sqs = second,
           .masters = masters,
           .steps = steps,
           .salts = salts},
          {.lr_factor = at::full({}, 0.5, device), .grad_scale = at::full({1}, 0.25, device)});
  }
  params.insert(params.end(), second.begin(), second.end());
  return params;
}

TEST(KernelsOnGpu, AdamWFollowsTheCpu) {
  std::vector<int64_t> salts(45);
  for (size_t i = 0; i < salts.size(); ++i) salts[i] = static_cast<int64_t>(3 * i);
  struct {
    at::ScalarType param, moment;
    bool has_master, is_random;
    double tolerance;
  } const cases[] = {{at::kFloat, at::kFloat, false, false, 1e-6},
                     {at::kDouble, at::kDouble, false, false, 1e-14},
                     {at::kBFloat16, at::kFloat, true, false, 1e-3},
                     {at::kHalf, at::kFloat, true, false, 1e-4},
                     {at::kBFloat16, at::kBFloat16, false, true, 1e-3}};
  for (const auto& one : cases) {
    const std::vector<int64_t> used = one.is_random ? salts : std::vector<int64_t>();
    const Tensors expected = Train(at::kCPU, one.param, one.moment, one.has_master, used);
    const Tensors actual =
        Train(at::Device(at::kCUDA, 0), one.param, one.moment, one.has_master, used);

    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i].numel() == 0) continue;
      EXPECT_LE(RelativeError(actual[i].cpu(), expected[i]), one.tolerance)
          << one.param << ", result " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
