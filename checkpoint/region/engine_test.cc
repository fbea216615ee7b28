#include "checkpoint/region/engine.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/tanh.h"
#include "checkpoint/testing/fixture.h"
#include "gtest/gtest.h"

namespace lockstep::checkpoint {
namespace {

// Counts what it packs; hands it out again.
class Counting : public torch::autograd::SavedVariableHooks {
 public:
  explicit Counting(int* count) : count_(count) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = Alias(tensor);
    ++*count_;
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  int* count_;
  at::Tensor tensor_;
};

MakeHooks Count(int* count) {
  return [count] { return std::make_unique<Counting>(count); };
}

TEST(ScopedHooks, HeaderExample) {
  const at::Tensor x = Random({4});
  const Tensors expected = GradientsOf(at::tanh(x), {x});
  int count = 0;
  at::Tensor y;
  {
    const ScopedHooks scope(Count(&count));
    y = at::tanh(x);
  }

  EXPECT_EQ(count, 1);
  EXPECT_TRUE(SameBits(GradientsOf(y, {x}), expected));
}

TEST(ScopedHooks, TheInnermostAloneSees) {
  const at::Tensor x = Random({4});
  int outer = 0, inner = 0;
  const ScopedHooks scope(Count(&outer));
  {
    const ScopedHooks innermost(Count(&inner));
    at::tanh(x);
  }
  at::tanh(at::tanh(x));

  EXPECT_EQ(inner, 1);
  EXPECT_EQ(outer, 2);
}

TEST(ScopedHooks, OtherThreadsAreNotHooked) {
  const at::Tensor x = Random({4});
  int count = 0;
  const ScopedHooks scope(Count(&count));
  std::thread([&] {
    EXPECT_FALSE(HooksAreActive());
    at::tanh(x);
  }).join();

  EXPECT_TRUE(HooksAreActive());
  EXPECT_EQ(count, 0);
}

TEST(ScopedHooks, AnExceptionOfPackLeavesTheOperatorAndHarmsNothing) {
  struct Throwing : public torch::autograd::SavedVariableHooks {
    void call_pack_hook(const at::Tensor&) override { throw std::runtime_error("stop here"); }
    at::Tensor call_unpack_hook() override { return {}; }
  };
  const at::Tensor x = Random({4});

  const std::string message = MessageOf([&] {
    const ScopedHooks scope([] { return std::make_unique<Throwing>(); });
    at::tanh(x);
  });

  EXPECT_EQ(message, "stop here");
  EXPECT_FALSE(HooksAreActive());
  EXPECT_TRUE(GradientsOf(at::tanh(x), {x})[0].defined());
}

TEST(Alias, SharesElementsAndVersionAndHasNoHistory) {
  const at::Tensor y = at::tanh(Random({4}));
  const at::Tensor alias = Alias(y);
  {
    const at::NoGradGuard no_grad;
    y.add_(1);
  }

  EXPECT_FALSE(alias.requires_grad());
  EXPECT_EQ(alias.data_ptr(), y.data_ptr());
  EXPECT_EQ(alias._version(), y._version());
}

}  // namespace
}  // namespace lockstep::checkpoint
