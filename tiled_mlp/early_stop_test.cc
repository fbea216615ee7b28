// Tests what a checkpointed region saves of a tiled MLP, and when: x and the weights, before any
// tile runs. A region recomputes until it has the last of its saved tensors. So it stops before the
// tiles if nothing after them saves anything. The MLP's forward then runs twice in a step (forward,
// and with gradients), not three times.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tiled_mlp/tiled.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/saved_variable_hooks.h"

namespace lockstep::tiled_mlp {
namespace {

struct EnoughSaved {};

struct Log {
  bool active = false;
  std::vector<std::string> events;
  int64_t stop_after = -1;  // throws once so many tensors are saved: a region's early stop
  int64_t saved = 0;
} log;

class LoggingHooks final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    log.events.push_back("save");
    if (++log.saved == log.stop_after) throw EnoughSaved();
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  at::Tensor tensor_;
};

class LoggingEngine final : public torch::autograd::Engine {
 public:
  ~LoggingEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return log.active ? std::make_unique<LoggingHooks>() : nullptr;
  }
};

torch::autograd::Engine& TheEngine() {
  static LoggingEngine engine;
  return engine;
}

// Before main: an engine that has run already keeps its worker threads.
[[maybe_unused]] const bool installed = [] {
  torch::autograd::set_default_engine_stub(TheEngine);
  return true;
}();

// A pre-norm block's tail: x + mlp(norm of x), the norm left out.
at::Tensor Block(const at::Tensor& x, const std::vector<at::Tensor>& w) {
  const TileBody body = [](const at::Tensor& tile, at::TensorList weights) {
    log.events.push_back("tile");
    return std::vector{at::linear(at::silu(at::linear(tile, weights[0])), weights[1])};
  };
  return x + RunTiled(body, x, w, {.size = {.num_tiles = 3}})[0];
}

struct EarlyStop : testing::Test {
  EarlyStop() {
    log = Log{};
    log.active = true;
  }
  ~EarlyStop() override { log = Log{}; }
  at::Tensor x = at::ones({9, 4}).requires_grad_();
  std::vector<at::Tensor> w = {at::ones({8, 4}).requires_grad_(),
                               at::ones({4, 8}).requires_grad_()};
};

TEST_F(EarlyStop, AllThatIsSavedIsSavedBeforeTheFirstTile) {
  ASSERT_EQ(&torch::autograd::Engine::get_default_engine(), &TheEngine())
      << "another engine is in place, and no tensor that is saved would be seen";

  Block(x, w);

  EXPECT_EQ(log.events, (std::vector<std::string>{"save", "save", "save", "tile", "tile", "tile"}));
}

TEST_F(EarlyStop, ARecomputationThatStopsAtTheLastSavedTensorRunsNoTile) {
  Block(x, w);
  const int64_t saved = std::exchange(log.saved, 0);
  log.events.clear();
  log.stop_after = saved;

  EXPECT_THROW(Block(x, w), EnoughSaved);

  EXPECT_EQ(log.events, std::vector<std::string>(3, "save"));
}

TEST_F(EarlyStop, BackwardRunsEachTileOnceMore) {
  const at::Tensor y = Block(x, w);
  log.active = false;
  log.events.clear();

  y.sum().backward();

  EXPECT_EQ(log.events, std::vector<std::string>(3, "tile"));
  EXPECT_TRUE(w[0].grad().defined());
}

}  // namespace
}  // namespace lockstep::tiled_mlp
