#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/tanh.h"
#include "checkpoint/region/checkpoint.h"
#include "checkpoint/testing/fixture.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"

namespace lockstep::checkpoint {
namespace {

// As textbooks have it: forward without a graph, backward runs both. For comparison.
struct Reentrant : public torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Layer* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    return (*layer)(x);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    const auto* layer = reinterpret_cast<const Layer*>(context->saved_data["layer"].toInt());
    const at::AutoGradMode mode(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    const at::Tensor y = (*layer)(x);
    torch::autograd::backward({y}, gradients);
    return {x.grad(), at::Tensor()};
  }
};

TEST(CheckpointMemory, PeakMemoryIsBelowThatOfThePlainGraphAndNotAboveReentrant) {
  std::vector<Layer> layers;
  for (int i = 0; i < 6; ++i) layers.emplace_back(16);
  const at::Tensor x = Random({512, 16});
  const auto peak = [&](const std::function<at::Tensor(const Layer&, const at::Tensor&)>& call) {
    GradientsOf(layers[0](x), {x});  // gradients of weights are there before
    for (const Layer& layer : layers) GradientsOf(layer(x), {x});
    return MemoryOf([&] {
      at::Tensor h = x;
      for (const Layer& layer : layers) h = call(layer, h);
      torch::autograd::backward({h.sum()});
    });
  };
  const Checkpoint checkpoint;

  const Memory plain = peak([](const Layer& layer, const at::Tensor& h) { return layer(h); });
  const Memory reentrant =
      peak([](const Layer& layer, const at::Tensor& h) { return Reentrant::apply(h, &layer); });
  const Memory ours =
      peak([&](const Layer& layer, const at::Tensor& h) { return Call(checkpoint, layer, h); });

  EXPECT_GT(plain.peak, reentrant.peak);
  EXPECT_GE(reentrant.peak, ours.peak);
  EXPECT_LE(ours.kept, plain.kept);
}

TEST(CheckpointMemory, ADroppedGraphFreesAllMemory) {
  const Layer net(32);
  const Checkpoint checkpoint;
  const at::Tensor x = Random({64, 32});
  auto in_function = std::make_shared<int>(0);

  const Memory memory = MemoryOf([&] {
    const at::Tensor y = Call(
        checkpoint, [&net, in_function](const at::Tensor& in) { return net(in); }, at::tanh(x));
    EXPECT_GT(in_function.use_count(), 1);
  });

  EXPECT_EQ(memory.kept, 0);
  EXPECT_EQ(in_function.use_count(), 1);
}

TEST(CheckpointMemory, MemoryIsFlatOverFiftyStepsWithAnUnusedBranch) {
  const Layer used(16), unused(16);
  const Checkpoint checkpoint;
  const at::Tensor x = Random({32, 16});
  const auto step = [&] {
    const at::Tensor h = Call(checkpoint, used, x);
    const at::Tensor aside = Call(checkpoint, unused, h);  // never reaches a loss
    GradientsOf(Call(checkpoint, used, h), used.weights());
  };

  const Memory one = MemoryOf(step);
  const Memory fifty = MemoryOf([&] {
    for (int i = 0; i < 50; ++i) step();
  });

  EXPECT_EQ(fifty.kept, 0);  // the first step's gradients were there before
  EXPECT_LE(fifty.peak, one.peak);
}

TEST(CheckpointMemory, TensorsThatBackwardDoesNotNeedAreFreedAtItsEnd) {
  const at::Tensor x = Random({1000}), z = Random({1000});
  const Tensors y = Checkpoint()(
      [](const Tensors& in) {
        return Tensors{at::tanh(in[0]), at::tanh(in[1])};
      },
      {x, z});

  const Memory memory =
      MemoryOf([&] { torch::autograd::grad({y[0].sum()}, {x}, {}, /*retain_graph=*/true); });

  EXPECT_EQ(memory.kept, 0);
}

}  // namespace
}  // namespace lockstep::checkpoint
