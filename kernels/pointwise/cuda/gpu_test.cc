// Tests that need a GPU: fused functions there against ATen's operators in float64.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/cuda/compiler.h"
#include "kernels/pointwise/fuse.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using tests::RelativeError;
using Tensors = std::vector<at::Tensor>;

Tensors Chain(const Tensors& in) {
  const at::Tensor z = 3 * at::tanh((in[0] + in[1]) / 3);
  return {at::where(z > 0, z, 0.1 * z) * at::silu(in[2]), z.exp()};
}

// Attention's weights and RMSNorm, which reduce rows.
Tensors ChainOfRows(const Tensors& in) {
  const at::Tensor x = in[0] + in[1], e = at::exp(x - x.amax({-1}, true));
  const at::Tensor normed = in[0] * at::rsqrt((in[0] * in[0]).mean({-1}, true) + 1e-6);
  return {e / e.sum({-1}, true), normed * in[1], x.sum({-1})};
}

// The results, then the gradients.
Tensors Results(const PointwiseFunction& function, const Tensors& inputs, at::Device device,
                at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.to(device, dtype).detach().requires_grad_(true));
  Tensors results = function(leaves);
  Tensors ones;
  for (const at::Tensor& result : results) ones.push_back(at::ones_like(result));
  const Tensors gradients = torch::autograd::grad(results, leaves, ones);
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

void Compare(const PointwiseFunction& chain,
             const std::vector<std::vector<std::vector<int64_t>>>& shapes) {
  std::string cache = (std::filesystem::temp_directory_path() / "fuse.XXXXXX").string();
  ASSERT_NE(mkdtemp(cache.data()), nullptr);
  setenv("LOCKSTEP_CACHE", cache.c_str(), 1);
  at::manual_seed(1);
  const int64_t compiled_before = pointwise::cuda::NumCompilations();
  FusedFunction fused(chain);
  const PointwiseFunction call = [&](const Tensors& in) {
    return fused(std::vector<PointwiseArgument>(in.begin(), in.end()));
  };
  const std::vector<std::pair<at::ScalarType, double>> dtypes = {
      {at::kDouble, 1e-12}, {at::kFloat, 3e-6}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}};
  for (const auto& shape : shapes) {
    Tensors inputs;
    for (const auto& sizes : shape) inputs.push_back(at::randn(sizes, at::kDouble));
    for (const auto& [dtype, tolerance] : dtypes) {
      Tensors rounded;
      for (const at::Tensor& x : inputs) rounded.push_back(x.to(dtype));
      const Tensors truth = Results(chain, rounded, at::kCPU, at::kDouble);

      const Tensors actual = Results(call, rounded, at::Device(at::kCUDA, 0), dtype);

      for (size_t i = 0; i < truth.size(); ++i) {
        EXPECT_EQ(actual[i].sizes(), truth[i].sizes());
        EXPECT_LE(RelativeError(actual[i].cpu(), truth[i]), tolerance)
            << inputs[0].sizes() << dtype << ", result " << i;
      }
    }
  }
  EXPECT_GT(pointwise::cuda::NumCompilations(), compiled_before) << "ATen's operators ran";
  std::filesystem::remove_all(cache);
}

TEST(GpuPointwise, ResultsAndGradientsAreThoseOfAten) {
  Compare(Chain, {{{7}, {7}, {7}},
                  {{64, 1000}, {1000}, {64, 1}},
                  {{3, 1, 5}, {4, 5}, {}},
                  {{0, 3}, {3}, {1}},
                  {{3000, 7000}, {7000}, {3000, 7000}}});
}

TEST(GpuPointwise, RowsAreReducedAsByAten) {
  Compare(ChainOfRows, {{{7}, {7}}, {{64, 1000}, {1000}}, {{3, 2, 33}, {1}}, {{70000, 64}, {64}}});
}

}  // namespace
}  // namespace lockstep::kernels
