// Tests that need a GPU: its kernels and generators, low-precision products that are summed in
// float32, and streams other than the default.

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "cuda_runtime_api.h"
#include "gtest/gtest.h"
#include "tests/support/relative_error.h"
#include "tiled_mlp/cross_entropy.h"
#include "tiled_mlp/mlp.h"
#include "tiled_mlp/tiled.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tiled_mlp {
namespace {

using tests::RelativeError;

constexpr int64_t kTokens = 4096, kHidden = 256, kIntermediate = 704, kVocabulary = 5000;

at::Tensor Random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::device(at::kCUDA).dtype(dtype)).mul_(0.06).requires_grad_();
}

std::vector<at::Tensor> SwiGlu(const at::Tensor& tile, at::TensorList w) {
  return {at::linear(at::silu(at::linear(tile, w[0])) * at::linear(tile, w[1]), w[2])};
}

struct Model {
  explicit Model(at::ScalarType dtype)
      : x(Random({2, kTokens / 2, kHidden}, dtype)),
        w({Random({kIntermediate, kHidden}, dtype), Random({kIntermediate, kHidden}, dtype),
           Random({kHidden, kIntermediate}, dtype)}) {}

  // Returns the gradients of x and the weights.
  std::vector<at::Tensor> Gradients(const at::Tensor& y) const {
    return torch::autograd::grad({y.to(at::kDouble).square().sum()}, {x, w[0], w[1], w[2]});
  }
  std::vector<at::Tensor> Tiled(const TileOptions& options) const {
    return Gradients(RunTiled(SwiGlu, x, w, options)[0]);
  }
  std::vector<at::Tensor> BuiltIn(const TileOptions& options) const {
    return Gradients(
        RunTiledMlp(x, {.gate = w[0], .up = w[1], .down = w[2]}, Activation::kSilu, options));
  }
  Model InDouble() const {
    Model wide = *this;
    wide.x = x.detach().to(at::kDouble).requires_grad_();
    for (at::Tensor& weight : wide.w) weight = weight.detach().to(at::kDouble).requires_grad_();
    return wide;
  }

  at::Tensor x;
  std::vector<at::Tensor> w;
};

TEST(Gpu, GradientsAreThoseOfTheUntiled) {
  const Model s(at::kDouble);
  const std::vector<at::Tensor> truth = s.Gradients(SwiGlu(s.x, s.w)[0]);
  for (const int64_t tiles : {1, 3, 16}) {
    const TileOptions options = {.size = {.num_tiles = tiles}};
    const std::vector<at::Tensor> tiled = s.Tiled(options), built_in = s.BuiltIn(options);
    for (size_t i = 0; i < truth.size(); ++i) {
      EXPECT_LT(RelativeError(tiled[i], truth[i]), 1e-12) << tiles;
      EXPECT_LT(RelativeError(built_in[i], truth[i]), 1e-12) << tiles;
    }
  }
}

TEST(Gpu, TheBuiltInMlpAddsUpInFloat32NearerThanUntiledBfloat16) {
  const Model s(at::kBFloat16);
  const Model wide = s.InDouble();
  const std::vector<at::Tensor> truth = wide.Gradients(SwiGlu(wide.x, wide.w)[0]);
  const std::vector<at::Tensor> untiled = s.Gradients(SwiGlu(s.x, s.w)[0]);

  const std::vector<at::Tensor> summed =
      s.BuiltIn({.size = {.num_tiles = 16}, .accumulate_fp32 = true});

  for (size_t i = 1; i < truth.size(); ++i)
    EXPECT_LE(RelativeError(summed[i], truth[i]), RelativeError(untiled[i], truth[i])) << i;
}

TEST(Gpu, DropoutDropsTheSameElementsInBackward) {
  const at::Tensor x = at::ones({100, 6}, at::device(at::kCUDA)).requires_grad_();
  const TileBody dropout = [](const at::Tensor& tile, at::TensorList) {
    return std::vector{at::dropout(tile, 0.5, true)};
  };

  const at::Tensor y = RunTiled(dropout, x, {}, {.size = {.num_tiles = 7}})[0];
  at::rand({5}, at::device(at::kCUDA));  // what comes between
  y.sum().backward();

  EXPECT_TRUE(at::equal(x.grad(), y));
}

TEST(Gpu, AnotherStreamGivesTheSameBits) {
  const Model s(at::kFloat);
  const TileOptions options = {.size = {.num_tiles = 4}};
  const std::vector<at::Tensor> expected = s.Tiled(options);
  cudaDeviceSynchronize();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());

  for (int step = 0; step < 5; ++step) {
    const std::vector<at::Tensor> actual = s.Tiled(options);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i]));
  }
}

TEST(Gpu, CrossEntropyIsThatOfTheLogits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = Random({kTokens, kHidden}, dtype);
    const at::Tensor weight = Random({kVocabulary, kHidden}, dtype);
    const at::Tensor labels =
        at::randint(kVocabulary, {kTokens}, hidden.options().dtype(at::kLong));
    labels.narrow(0, 0, 100).fill_(-100);
    const std::vector<at::Tensor> truth = torch::autograd::grad(
        {at::cross_entropy_loss(at::linear(hidden.to(at::kDouble), weight.to(at::kDouble)),
                                labels)},
        {hidden, weight});

    const CrossEntropy result = TiledCrossEntropy(hidden, weight, labels, {});
    const std::vector<at::Tensor> gradients =
        torch::autograd::grad({result.loss}, {hidden, weight});

    EXPECT_EQ(result.count.item<int64_t>(), kTokens - 100);
    for (size_t i = 0; i < truth.size(); ++i)
      EXPECT_LT(RelativeError(gradients[i], truth[i].to(at::kDouble)),
                dtype == at::kFloat ? 1e-5 : 0.02);
  }
}

}  // namespace
}  // namespace lockstep::tiled_mlp
