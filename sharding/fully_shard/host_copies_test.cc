// The order of copies, of computation on the device and of an optimizer on the host, tried in every
// way in which they may run: what no test on a CPU sees otherwise.

#include "sharding/fully_shard/host_copies.h"

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "base/torch/copies/recording_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/fully_shard/fully_shard.h"

namespace lockstep::sharding {
namespace {

using ::lockstep::base::RecordingEngine;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const c10::Device kDevice = at::kCPU;

struct HostCopiesOrder : testing::Test {
  std::shared_ptr<RecordingEngine> engine = std::make_shared<RecordingEngine>();
  HostCopies copies{engine, kDevice};
};

// --- The rules -----------------------------------------------------------------------------------

TEST_F(HostCopiesOrder, WeightsAreUsedAfterTheyHaveCome) {
  const at::Tensor master = copies.Allocate(4, at::kDouble);
  for (const bool waits : {true, false}) {
    const at::Tensor weights = copies.StartUpload(master, at::kDouble);
    if (waits) copies.MakeCurrentWait();
    engine->Compute({weights}, {});
    if (waits) {
      EXPECT_THAT(engine->Problems(), IsEmpty());
    } else {
      EXPECT_THAT(engine->Problems(), Contains(HasSubstr("0: compute from")));
    }
  }
}

// The race of an optimizer on the CPU: it writes masters whose copy is under way.
TEST_F(HostCopiesOrder, AnOptimizerWritesMastersThatNoCopyReads) {
  const at::Tensor master = copies.Allocate(4, at::kDouble);
  for (const bool leaves : {true, false}) {
    const at::Tensor weights = copies.StartUpload(master, at::kDouble);
    copies.MakeCurrentWait();
    if (leaves) copies.LeaveMasters();
    engine->ComputeOnHost({}, {master});
    if (leaves) {
      EXPECT_THAT(engine->Problems(), IsEmpty());
    } else {
      EXPECT_THAT(engine->Problems(),
                  Contains(HasSubstr("host: compute to the host may run before")));
    }
  }
}

// A copy of the cast is no copy of the masters. LeaveMasters would not wait here.
TEST_F(HostCopiesOrder, MastersThatAreCastMayBeWrittenAtOnce) {
  const at::Tensor master = copies.Allocate(4, at::kDouble);
  for (int step = 0; step < 3; ++step) {
    at::Tensor weights = copies.StartUpload(master, at::kFloat);
    copies.MakeCurrentWait();
    engine->Compute({weights}, {});
    EXPECT_EQ(weights[0].item<double>(), step);
    engine->ComputeOnHost({}, {master});
    master.fill_(step + 1);
    copies.ForgetCast();
  }
  EXPECT_THAT(engine->Problems(), IsEmpty());
}

// Within a pass the cast is made once: a copy under way reads it, and nobody may write it.
TEST_F(HostCopiesOrder, ThePassDecidesWhenMastersAreReadAnew) {
  const at::Tensor master = copies.Allocate(4, at::kDouble);
  copies.StartUpload(master, at::kFloat);
  master.fill_(5);
  EXPECT_EQ(copies.StartUpload(master, at::kFloat)[0].item<double>(), 0);
  copies.ForgetCast();
  EXPECT_EQ(copies.StartUpload(master, at::kFloat)[0].item<double>(), 5);
}

TEST_F(HostCopiesOrder, AGradientIsReadAfterItHasComeAndItsMemoryIsUsedAgain) {
  std::vector<const void*> used;
  for (int step = 0; step < 4; ++step) {
    at::Tensor gradient = engine->Make({4});
    copies.StartDownload(gradient);
    gradient.reset();  // its memory may be used by the device once it is copied
    at::Tensor on_host = copies.FinishDownload();
    engine->ComputeOnHost({on_host}, {});
    used.push_back(on_host.const_data_ptr());
    if (step == 1) {  // a script that keeps a gradient keeps its memory
      const at::Tensor kept = on_host;
      copies.StartDownload(engine->Make({4}));
      EXPECT_NE(copies.FinishDownload().const_data_ptr(), kept.const_data_ptr());
    }
  }
  EXPECT_THAT(used, testing::Each(used[0]));
  EXPECT_FALSE(copies.FinishDownload().defined());
  EXPECT_THAT(engine->Problems(), IsEmpty());
}

TEST_F(HostCopiesOrder, AnEndBeforeTheUploadWaitsForIt) {
  auto owned = std::make_unique<HostCopies>(engine, kDevice);
  at::Tensor master = owned->Allocate(4, at::kDouble);
  const at::Tensor weights = owned->StartUpload(master, at::kDouble);
  owned.reset();
  engine->ComputeOnHost({}, {master});  // freed
  EXPECT_THAT(engine->Problems(), IsEmpty());
}

// --- A sharded model -----------------------------------------------------------------------------

// A model of one rank: units that multiply by their weights, on a device whose kernels are
// recorded.
struct Recorded {
  Recorded(std::shared_ptr<RecordingEngine> given, int units, std::optional<at::ScalarType> dtype)
      : engine(std::move(given)) {
    std::vector<UnitParameters> all = {{"", {}}};
    for (int u = 0; u < units; ++u) {
      weights.push_back(at::full({2}, u + 1, at::kDouble).requires_grad_(true));
      all.push_back(
          {"layer " + std::to_string(u), {{"weight " + std::to_string(u), weights.back()}}});
    }
    FullyShardOptions options;
    options.unit.offload = true;
    options.unit.engine = engine;
    options.unit.param_dtype = dtype;
    model = std::make_unique<FullyShard>(all, std::vector<at::Tensor>(), groups, nullptr, options);
  }

  at::Tensor Forward(const std::vector<size_t>& calls) {
    at::Tensor x = at::ones({2}, weights[0].scalar_type()), expected = at::ones({2}, at::kDouble);
    model->BeginForward(0, {});
    for (const size_t u : calls) {
      model->BeginForward(u + 1, {x});
      const at::Tensor product = weights[u] * x;
      engine->Compute({weights[u]}, {});
      if (product.requires_grad())  // runs once backward has entered the unit
        product.register_hook([this, u](const at::Tensor&) { engine->Compute({weights[u]}, {}); });
      const at::Tensor y = product + 1;
      model->EndForward(u + 1, {y});
      x = y;
      expected = Master(u) * expected + 1;
    }
    EXPECT_TRUE(at::allclose(x, expected.to(x.scalar_type()), 1e-5));
    x = x.sum();
    model->EndForward(0, {x});
    return x;
  }

  at::Tensor Master(size_t u) const { return model->Shards()[u].tensor.detach(); }

  void Descend() {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& shard : model->Shards()) {
      at::Tensor p = shard.tensor;
      if (!p.grad().defined()) continue;
      engine->ComputeOnHost({p.grad()}, {p});
      p.sub_(p.grad(), 0.01);
      p.mutable_grad().reset();
    }
  }

  std::shared_ptr<RecordingEngine> engine;
  std::vector<at::Tensor> weights;
  ShardGroups groups;
  std::unique_ptr<FullyShard> model;
};

TEST(HostMasters, NoStepOfARandomModelDependsOnTheOrderOfStreams) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const auto engine = std::make_shared<RecordingEngine>();
    Recorded recorded(engine, 3, seed % 2 == 0 ? std::nullopt : std::optional(at::kFloat));
    for (int step = 0; step < 2; ++step) {
      const int micro_batches = 1 + static_cast<int>(random() % 2);
      for (int micro = 0; micro < micro_batches; ++micro) {
        std::vector<size_t> calls;
        for (size_t u = 0; u < 3; ++u) {
          if (random() % 4 != 0) calls.push_back(u);
        }
        if (calls.empty()) calls.push_back(0);
        if (random() % 3 == 0) {
          const at::NoGradGuard no_grad;
          recorded.Forward(calls);
          continue;
        }
        at::Tensor loss = recorded.Forward(calls);
        if (random() % 4 != 0) loss.backward();  // or the graph is dropped
      }
      recorded.Descend();
      // A script may write masters after any pass.
      for (const NamedTensor& shard : recorded.model->Shards())
        engine->ComputeOnHost({}, {shard.tensor});
    }
    EXPECT_THAT(engine->Problems(), IsEmpty()) << "seed " << seed;
    EXPECT_GT(engine->num_operations(), 20);
  }
}

}  // namespace
}  // namespace lockstep::sharding
