#include "checkpoint/offload/host_offload.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tanh.h"
#include "c10/core/InferenceMode.h"
#include "checkpoint/region/checkpoint.h"
#include "checkpoint/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/saved_variable.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using torch::autograd::SavedVariable;

std::shared_ptr<HostOffload> Offload(const OffloadOptions& options = {.min_bytes = 1}) {
  return HostOffload::New(options);
}

// Each tensor is of a region of its own.
std::vector<SavedVariable> Save(HostOffload& offload, const Tensors& tensors) {
  const ScopedHooks hooks(offload.HooksOfEach());
  std::vector<SavedVariable> saved;
  for (const at::Tensor& tensor : tensors) saved.emplace_back(tensor, false);
  return saved;
}

constexpr int64_t kRows = 64;
constexpr int64_t kSize = 32;
constexpr int64_t kBytes = kRows * kSize * 8;  // of a layer's input

// Layers as regions. Nothing else holds their inputs.
at::Tensor Forward(const Checkpoint& checkpoint, const std::vector<Layer>& layers,
                   const at::Tensor& x) {
  at::Tensor h = x + 0;
  for (const Layer& layer : layers) h = Call(checkpoint, layer, h);
  return h;
}

std::vector<Layer> Layers(int count) {
  std::vector<Layer> layers;
  for (int i = 0; i < count; ++i) layers.emplace_back(kSize);
  return layers;
}

TEST(HostOffload, HeaderExample) {
  auto offload = HostOffload::New({.keep_last = 1, .prefetch = 1});
  Checkpoint checkpoint({.offload = offload});
  const std::vector<Layer> layers = Layers(3);
  const at::Tensor x = Random({kRows, kSize});
  at::Tensor loss;
  SaveOnHost(*offload, [&] { loss = layers[0](x).sum(); });

  Forward(checkpoint, layers, x).sum().backward();
  loss.backward();

  EXPECT_GT(offload->stats().offloaded_bytes, 0);
}

TEST(HostOffload, GradientsAreTheSameBits) {
  const std::vector<Layer> layers = Layers(5);
  const at::Tensor x = Random({kRows, kSize});
  const Tensors expected = GradientsOf(Forward(Checkpoint(), layers, x), {x});
  for (const int64_t keep_last : {0, 1, 3, 9}) {
    for (const int64_t prefetch : {0, 1, 2, 9}) {
      SCOPED_TRACE(testing::Message() << "keep_last " << keep_last << " prefetch " << prefetch);
      const auto offload = Offload({.keep_last = keep_last, .prefetch = prefetch});
      const at::Tensor y = Forward(Checkpoint({.offload = offload}), layers, x);

      EXPECT_TRUE(SameBits(GradientsOf(y, {x}, /*retain_graph=*/true), expected));
      EXPECT_TRUE(SameBits(GradientsOf(y, {x}), expected));
    }
  }
}

TEST(HostOffload, AllButTheLastRegionsLeaveTheDeviceAndComeBack) {
  const std::vector<Layer> layers = Layers(8);
  const at::Tensor x = Random({kRows, kSize});
  const auto offload = Offload({.keep_last = 1});
  const Checkpoint checkpoint({.offload = offload});
  GradientsOf(layers[0](x), {x});

  at::Tensor plainly, y;
  const Memory plain = MemoryOf([&] { plainly = Forward(Checkpoint(), layers, x); });
  const Memory offloaded = MemoryOf([&] { y = Forward(checkpoint, layers, x); });
  const OffloadStats forward = offload->stats();
  GradientsOf(y, {x});

  // Both graphs are alive: each meter has seen its own.
  EXPECT_GE(plain.kept, 9 * kBytes);  // the inputs of 8 regions, and the result
  EXPECT_EQ(plain.kept - offloaded.kept, 7 * kBytes);
  EXPECT_EQ(forward.offloaded_bytes, 8 * kBytes);
  EXPECT_EQ(forward.host_bytes, 8 * kBytes);
  EXPECT_EQ(offload->stats().restored_bytes, 7 * kBytes);
}

TEST(HostOffload, OnceWarmNothingIsAllocatedAndHostBytesAreThePayload) {
  const std::vector<Layer> layers = Layers(8);
  const at::Tensor x = Random({kRows, kSize});
  const auto offload = Offload();
  const Checkpoint checkpoint({.offload = offload});
  GradientsOf(Forward(checkpoint, layers, x), {x});
  const OffloadStats warm = offload->stats();

  const Memory memory = MemoryOf([&] {
    for (int step = 0; step < 50; ++step) GradientsOf(Forward(checkpoint, layers, x), {x});
  });

  EXPECT_EQ(offload->stats().pool_allocations, warm.pool_allocations);
  EXPECT_EQ(offload->stats().host_bytes, warm.host_bytes);
  EXPECT_LE(static_cast<double>(warm.peak_host_bytes), 1.02 * 8 * kBytes);
  EXPECT_EQ(memory.kept, x.grad().nbytes());
}

TEST(HostOffload, TheRegionBeforeIsPrefetched) {
  const auto offload = Offload({.keep_last = 0, .prefetch = 1, .min_bytes = 1});
  Tensors tensors = {Random({8}, false), Random({8}, false), Random({8}, false)};
  const std::vector<SavedVariable> saved = Save(*offload, tensors);
  tensors.clear();

  const at::Tensor last = saved[2].unpack();
  EXPECT_EQ(offload->stats().restored_bytes, 2 * 64);
  const at::Tensor middle = saved[1].unpack();
  EXPECT_EQ(offload->stats().restored_bytes, 3 * 64);
  const at::Tensor first = saved[0].unpack();

  EXPECT_EQ(offload->stats().restored_bytes, 3 * 64);
}

TEST(HostOffload, ParametersTheirViewsAndSmallTensorsStay) {
  const auto offload = Offload({.min_bytes = 64});
  const at::Tensor weight = Random({16, 16});
  Tensors tensors = {weight, weight.t(), Random({7}, false), Random({0}, false)};

  const std::vector<SavedVariable> saved = Save(*offload, tensors);

  EXPECT_EQ(offload->stats().offloaded_bytes, 0);
  for (size_t i = 0; i < tensors.size(); ++i)
    EXPECT_EQ(saved[i].unpack().data_ptr(), tensors[i].data_ptr()) << i;
  EXPECT_TRUE(saved[0].unpack().requires_grad());
}

TEST(HostOffload, TensorsThatAreNamedAreNeverCopied) {
  const auto offload = Offload();
  const at::Tensor frozen = Random({16, 16}, false);
  offload->KeepOnDevice({frozen, at::Tensor()});

  const std::vector<SavedVariable> saved = Save(*offload, {frozen, frozen.t()});

  EXPECT_EQ(offload->stats().offloaded_bytes, 0);
  EXPECT_EQ(saved[1].unpack().data_ptr(), frozen.data_ptr());
}

TEST(HostOffload, BeyondTheLimitTensorsStayOnTheirDevice) {
  const std::vector<Layer> layers = Layers(8);
  const at::Tensor x = Random({kRows, kSize});
  const Tensors expected = GradientsOf(Forward(Checkpoint(), layers, x), {x});
  const auto offload = Offload({.max_host_bytes = 3 * kBytes});

  for (int step = 0; step < 2; ++step)
    EXPECT_TRUE(
        SameBits(GradientsOf(Forward(Checkpoint({.offload = offload}), layers, x), {x}), expected));

  EXPECT_EQ(offload->stats().peak_host_bytes, 3 * kBytes);
  EXPECT_EQ(offload->stats().refused_bytes, 2 * 5 * kBytes);
  EXPECT_THAT(MessageOf([] { Offload({.max_host_bytes = -1}); }), HasSubstr("max_host_bytes"));
}

// Threads with graphs of their own and masks that all share, one offload between them.
TEST(HostOffload, ThreadsShareAnOffload) {
  const auto offload = Offload({.keep_last = 1, .prefetch = 2, .min_bytes = 1});
  const at::Tensor mask = Random({kRows, kSize}, false);
  std::atomic<int> failures = 0;
  const auto work = [&](int number) {
    const at::Tensor x = at::ones({kRows, kSize}, at::kDouble) * number;
    for (int step = 0; step < 20; ++step) {
      std::vector<SavedVariable> saved;
      for (int i = 0; i < 5; ++i) {
        for (SavedVariable& variable : Save(*offload, {x + i, mask}))
          saved.push_back(std::move(variable));
      }
      for (int i = 4; i >= 0; --i) {
        const auto at = static_cast<size_t>(2 * i);
        failures +=
            !at::equal(saved[at].unpack(), x + i) || !at::equal(saved[at + 1].unpack(), mask);
        saved.resize(at);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int number = 1; number <= 4; ++number) threads.emplace_back(work, number);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(failures, 0);
  EXPECT_GT(offload->stats().restored_bytes, 0);
}

TEST(HostOffload, ASharedTensorIsCopiedOnceEachWay) {
  const auto offload = Offload({.keep_last = 0, .prefetch = 0, .min_bytes = 1});
  std::vector<SavedVariable> saved;
  {
    const at::Tensor mask = Random({100}, false);
    saved = Save(*offload, {mask, mask, mask});
  }

  for (const SavedVariable& variable : saved) EXPECT_EQ(variable.unpack().numel(), 100);

  EXPECT_EQ(offload->stats().offloaded_bytes, 800);
  EXPECT_EQ(offload->stats().restored_bytes, 800);
}

// Frozen weights, buffers and tables, and their views: what outlives a step without changing.
TEST(HostOffload, ATensorThatStaysOverStepsIsCopiedOnce) {
  const auto offload = Offload({.keep_last = 0, .prefetch = 0, .min_bytes = 1});
  const at::Tensor frozen = Random({10, 10}, false), other = Random({10, 10}, false);

  for (int step = 0; step < 5; ++step) {
    const at::Tensor activation = at::ones({100}, at::kDouble) * step;
    const std::vector<SavedVariable> saved = Save(*offload, {frozen, frozen.t(), activation});
    for (const SavedVariable& variable : saved) EXPECT_EQ(variable.unpack().numel(), 100);
    EXPECT_EQ(saved[0].unpack().data_ptr(), frozen.data_ptr());
    EXPECT_TRUE(at::equal(saved[1].unpack(), frozen.t()));
    if (step == 0) {
      EXPECT_TRUE(at::equal(Save(*offload, {other})[0].unpack(), other));
    }
  }

  // Each step's activation, and in the first step `other` and both views of `frozen`.
  EXPECT_EQ(offload->stats().offloaded_bytes, (5 + 1 + 2) * 800);
  EXPECT_EQ(offload->stats().restored_bytes, 0);
}

TEST(HostOffload, ATensorThatChangesBetweenStepsIsCopiedAgain) {
  const auto offload = Offload({.keep_last = 0, .prefetch = 0, .min_bytes = 1});
  const at::Tensor buffer = Random({100}, false);

  for (int step = 0; step < 4; ++step) {
    {
      const std::vector<SavedVariable> saved = Save(*offload, {buffer});
      EXPECT_TRUE(at::equal(saved[0].unpack(), buffer));
    }
    if (step < 2) buffer.add_(1);
  }

  EXPECT_EQ(offload->stats().offloaded_bytes, 3 * 800);
}

TEST(HostOffload, ATensorStillOnTheDeviceIsNotCopiedBack) {
  const auto offload = Offload({.keep_last = 0, .min_bytes = 1});
  const at::Tensor mask = Random({100}, false);
  const std::vector<SavedVariable> saved = Save(*offload, {mask});

  EXPECT_EQ(saved[0].unpack().data_ptr(), mask.data_ptr());

  EXPECT_EQ(offload->stats().restored_bytes, 0);
}

// The address of a freed storage is soon another's: it must not pass for the one that was copied.
TEST(HostOffload, AnotherTensorAtTheSameAddressIsAnotherTensor) {
  const auto offload = Offload({.keep_last = 0, .min_bytes = 1});
  std::vector<std::vector<SavedVariable>> saved;
  for (int i = 0; i < 50; ++i) saved.push_back(Save(*offload, {at::ones({100}) * i}));

  for (int i = 0; i < 50; ++i) EXPECT_EQ(saved[i][0].unpack()[99].item<float>(), i);
}

TEST(HostOffload, ViewsComeBackWithTheirStridesAndElements) {
  const at::Tensor base = Random({6, 5, 4}, false);
  struct Case {
    const char* name;
    at::Tensor view;
    int64_t host_elements;
  };
  const std::vector<Case> cases = {
      {"all", base, 120},
      {"offset", base.slice(0, 2, 5), 60},
      {"transposed", base.transpose(0, 2), 120},
      {"overlapping without a common element, kept", base.as_strided({3, 3}, {30, 20}), 0},
      {"dense column, packed", base.select(2, 1), 30},
      {"expanded", base.select(2, 0).select(1, 0).unsqueeze(1).expand({6, 1000}), 101},
      {"expanded scalar", base.select(2, 0).select(1, 0).select(0, 0).expand({50, 50}), 1},
      {"scalar", base.select(2, 3).select(1, 4).select(0, 5), 1}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto offload = Offload({.keep_last = 0, .min_bytes = 1});
    // Restored from the host: the view's own storage is gone by then.
    const at::Tensor storage = base.clone();
    at::Tensor view = storage.as_strided(c.view.sizes(), c.view.strides(), c.view.storage_offset());
    const std::vector<SavedVariable> saved = Save(*offload, {view});
    const_cast<at::Tensor&>(storage).reset();
    view.reset();

    const at::Tensor restored = saved[0].unpack();

    EXPECT_TRUE(at::equal(restored, c.view));
    EXPECT_EQ(restored.strides(), c.view.strides());
    EXPECT_EQ(offload->stats().offloaded_bytes, c.host_elements * 8);
    EXPECT_EQ(offload->stats().restored_bytes, c.host_elements * 8);
  }
}

// As autograd refuses it, wherever the tensor is by then: on its device, on the host alone, or
// prefetched.
TEST(HostOffload, ATensorThatWasModifiedInPlaceIsRefused) {
  for (const int64_t keep_last : {0, 5}) {
    for (const bool is_gone : {false, true}) {
      SCOPED_TRACE(testing::Message() << "keep_last " << keep_last << " is_gone " << is_gone);
      const auto offload = Offload({.keep_last = keep_last, .min_bytes = 1});
      at::Tensor x = at::ones({10});
      const std::vector<SavedVariable> saved = Save(*offload, {x});
      x.add_(1);
      const std::vector<SavedVariable> again = Save(*offload, {x});
      if (is_gone) x.reset();

      EXPECT_THAT(MessageOf([&] { saved[0].unpack(); }),
                  HasSubstr("was modified in place after it was saved"));
      EXPECT_EQ(again[0].unpack()[0].item<float>(), 2);
    }
  }
}

TEST(HostOffload, AnInputOfARegionThatIsModifiedIsRefusedAsWithoutOffload) {
  for (const bool offloads : {false, true}) {
    const Checkpoint checkpoint({.offload = offloads ? Offload() : nullptr});
    const at::Tensor x = Random({4, 4}), input = x * 2;
    const at::Tensor y = Call(
        checkpoint, [](const at::Tensor& in) { return at::tanh(in); }, input);
    input.detach().add_(1);

    EXPECT_THAT(MessageOf([&] { GradientsOf(y, {x}); }), HasSubstr("modified")) << offloads;
  }
}

// q, k and v of a fused projection: each spans nearly all of it.
TEST(HostOffload, ViewsThatShareMemoryComeBackIntoOneStorage) {
  constexpr int64_t kTokens = 100, kWidth = 32;
  const auto offload = Offload({.keep_last = 0, .prefetch = 0, .min_bytes = 1});
  at::Tensor fused = Random({kTokens, 3 * kWidth}, false);
  const Tensors expected = fused.clone().chunk(3, 1);
  const std::vector<SavedVariable> saved = Save(*offload, fused.chunk(3, 1));
  fused.reset();
  Tensors restored;

  const Memory memory = MemoryOf([&] {
    for (const SavedVariable& variable : saved) restored.push_back(variable.unpack());
  });

  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(restored[i], expected[i]));
    EXPECT_EQ(restored[i].strides(), expected[i].strides());
    EXPECT_EQ(restored[i].storage().data(), restored[0].storage().data());
  }
  EXPECT_LE(memory.kept, kTokens * 3 * kWidth * 8 + 64);
  EXPECT_EQ(offload->stats().restored_bytes, kTokens * 3 * kWidth * 8);
  restored.clear();
  EXPECT_TRUE(at::equal(saved[1].unpack(), expected[1])) << "in another backward";
}

TEST(HostOffload, ViewsThatLieApartComeBackApart) {
  const auto offload = Offload({.keep_last = 0, .prefetch = 0, .min_bytes = 1});
  at::Tensor table = Random({1000, 8}, false);
  const Tensors expected = {table[0].clone(), table[999].clone()};
  const std::vector<SavedVariable> saved = Save(*offload, {table[0], table[999]});
  table.reset();
  Tensors restored;

  const Memory memory = MemoryOf([&] {
    for (const SavedVariable& variable : saved) restored.push_back(variable.unpack());
  });

  EXPECT_TRUE(SameBits(restored, expected));
  EXPECT_LE(memory.kept, 4 * 64);
}

TEST(HostOffload, ATensorThatStaysIsRefusedWhereItWasModified) {
  const auto offload = Offload({.min_bytes = 1000000});
  const at::Tensor x = at::ones({10});
  const std::vector<SavedVariable> saved = Save(*offload, {x});
  x.add_(1);

  EXPECT_THAT(MessageOf([&] { saved[0].unpack(); }), HasSubstr("modified in place"));
}

TEST(HostOffload, SaveOnHostGivesTheSameBitsForAnyGraph) {
  const std::vector<Layer> layers = Layers(3);
  const at::Tensor x = Random({kRows, kSize});
  const auto model = [&] {
    at::Tensor h = x;
    for (const Layer& layer : layers)
      h = layer(h).view({kRows / 2, -1}).t().contiguous().view({kRows, -1});
    return h;
  };
  Tensors leaves = layers[1].weights();
  leaves.push_back(x);
  const Tensors expected = GradientsOf(model(), leaves);
  const auto offload = Offload();
  at::Tensor y;

  SaveOnHost(*offload, [&] { y = model(); });

  EXPECT_TRUE(SameBits(GradientsOf(y, leaves, true), expected));
  EXPECT_TRUE(SameBits(GradientsOf(y, leaves), expected));
  EXPECT_GT(offload->stats().restored_bytes, 0);
}

TEST(HostOffload, NestedRegionsOffloadOnlyTheOutermostInputs) {
  const std::vector<Layer> layers = Layers(3);
  const at::Tensor x = Random({kRows, kSize});
  const auto offload = Offload();
  const Checkpoint checkpoint({.offload = offload});

  const at::Tensor y = Call(
      checkpoint, [&](const at::Tensor& in) { return Forward(checkpoint, layers, in); },
      at::tanh(x));

  EXPECT_EQ(offload->stats().offloaded_bytes, kBytes);
  EXPECT_TRUE(
      SameBits(GradientsOf(y, {x}), GradientsOf(Forward(Checkpoint(), layers, at::tanh(x)), {x})));
}

TEST(HostOffload, AnInterludeInInferenceModeLeavesThePoolFitForTraining) {
  const std::vector<Layer> layers = Layers(3);
  const at::Tensor x = Random({kRows, kSize});
  const auto offload = Offload();
  const Checkpoint checkpoint({.offload = offload});
  const Tensors expected = GradientsOf(Forward(Checkpoint(), layers, x), {x});
  {
    const c10::InferenceMode inference;
    Forward(checkpoint, layers, x);
  }

  EXPECT_TRUE(SameBits(GradientsOf(Forward(checkpoint, layers, x), {x}), expected));
}

TEST(HostOffload, ExceptionsInForwardAndBackwardLeaveThePoolWhole) {
  const std::vector<Layer> layers = Layers(3);
  const at::Tensor x = Random({kRows, kSize});
  const auto offload = Offload();
  const Checkpoint checkpoint({.offload = offload});
  int pass = 0;
  const auto fails = [&](const at::Tensor& in) {
    if (pass++ == 1) throw std::runtime_error("disk on fire");
    return layers[0](in);
  };
  GradientsOf(Forward(checkpoint, layers, x), {x});
  const OffloadStats before = offload->stats();
  {
    const at::Tensor y =
        Call(checkpoint, fails, Forward(checkpoint, layers, x));  // fails in backward
    EXPECT_EQ(MessageOf([&] { GradientsOf(y, {x}); }), "disk on fire");
  }
  pass = 1;
  EXPECT_EQ(MessageOf([&] { Call(checkpoint, fails, Forward(checkpoint, layers, x)); }),
            "disk on fire");

  const Tensors gradients = GradientsOf(Forward(checkpoint, layers, x), {x});

  EXPECT_TRUE(SameBits(gradients, GradientsOf(Forward(Checkpoint(), layers, x), {x})));
  EXPECT_EQ(offload->stats().pool_allocations, before.pool_allocations + 1);  // fails' input
  EXPECT_EQ(offload->stats().host_bytes, before.host_bytes + kBytes);
}

TEST(HostOffload, InterleavedForwardAndBackwardPasses) {
  const std::vector<Layer> a = Layers(4), b = Layers(2);
  const at::Tensor x = Random({kRows, kSize});
  const Tensors of_a = GradientsOf(Forward(Checkpoint(), a, x), {x}),
                of_b = GradientsOf(Forward(Checkpoint(), b, x), {x});
  const Checkpoint checkpoint({.offload = Offload()});

  const at::Tensor a1 = Forward(checkpoint, a, x), b1 = Forward(checkpoint, b, x);
  EXPECT_TRUE(SameBits(GradientsOf(a1, {x}), of_a));
  const at::Tensor a2 = Forward(checkpoint, a, x);
  EXPECT_TRUE(SameBits(GradientsOf(b1, {x}), of_b));
  EXPECT_TRUE(SameBits(GradientsOf(a2, {x}), of_a));
}

TEST(HostOffload, NegativeOptionsAreRefused) {
  EXPECT_THAT(MessageOf([] { HostOffload::New({.keep_last = -1}); }), HasSubstr("-1, 1 and 1024"));
}

}  // namespace
}  // namespace lockstep::checkpoint
