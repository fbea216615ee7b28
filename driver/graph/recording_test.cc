#include "driver/graph/recording.h"

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ScalarOps.h"
#include "ATen/core/Generator.h"
#include "ATen/core/grad_mode.h"
#include "driver/graph/tape.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "tests/support/message_of.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::driver {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::MessageOf;
using Tensors = std::vector<at::Tensor>;

void Record(Tape* tape, const std::function<void()>& step) {
  Recording recording(tape);
  step();
  recording.Finish();
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const at::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Weights, and a step that trains them. Two of them from one seed take the same steps.
struct Training {
  Tensors weights;
  at::Tensor input = at::zeros({6, 8});
  std::function<at::Tensor(const Training&)> loss;
  std::function<void(const Training&)> update;
  at::Tensor last_loss;

  void Step() {
    last_loss = loss(*this);
    torch::autograd::backward({last_loss}, {});
    last_loss = last_loss.detach();
    update(*this);
  }
};

void Sgd(const Training& training) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& w : training.weights) {
    if (!w.grad().defined()) continue;
    w.sub_(w.grad() * 0.1);
    w.mutable_grad() = at::Tensor();
  }
}

struct Case {
  std::string name;
  std::function<Training()> make;
};

Training Make(std::vector<std::vector<int64_t>> shapes, at::ScalarType dtype,
              std::function<at::Tensor(const Training&)> loss) {
  at::manual_seed(7);
  Training training;
  for (const auto& shape : shapes)
    training.weights.push_back((at::randn(shape) * 0.5).to(dtype).requires_grad_());
  training.input = training.input.to(dtype);
  training.loss = std::move(loss);
  training.update = Sgd;
  return training;
}

const std::vector<Case>& Cases() {
  static const auto* const kCases = new std::vector<Case>{
      {"linear",
       [] {
         return Make({{4, 8}, {4}}, at::kFloat, [](const Training& t) {
           return at::linear(t.input, t.weights[0], t.weights[1]).pow(2).mean();
         });
       }},
      {"tied",
       [] {
         return Make({{8, 8}}, at::kFloat, [](const Training& t) {
           const at::Tensor& w = t.weights[0];
           return at::linear(at::linear(t.input, w).relu(), w.t()).logsumexp({-1}).sum();
         });
       }},
      {"bfloat16",
       [] {
         return Make({{8, 8}, {8, 8}}, at::kBFloat16, [](const Training& t) {
           return at::linear(at::silu(at::linear(t.input, t.weights[0])), t.weights[1])
               .to(at::kFloat)
               .pow(2)
               .sum();
         });
       }},
      {"dropout",
       [] {
         return Make({{8, 8}}, at::kFloat, [](const Training& t) {
           return at::dropout(at::linear(t.input, t.weights[0]), 0.3, true).pow(2).sum();
         });
       }},
      {"attention",
       [] {
         return Make({{24, 8}, {8}}, at::kFloat, [](const Training& t) {
           const at::Tensor x = kernels::RmsNorm(t.input, t.weights[1], 1e-6);
           const Tensors qkv =
               at::linear(x, t.weights[0]).view({1, 6, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
           return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true)
               .transpose(1, 2)
               .reshape({6, 8})
               .pow(2)
               .sum();
         });
       }},
      {"embedding and cross entropy",
       [] {
         return Make({{10, 8}, {10, 8}}, at::kFloat, [](const Training& t) {
           const at::Tensor ids = t.input.abs().mul(5).to(at::kLong).remainder(10).select(1, 0);
           return at::cross_entropy_loss(at::linear(at::embedding(t.weights[0], ids), t.weights[1]),
                                         ids);
         });
       }},
      {"kernels",
       [] {
         return Make({{8}, {8, 8}, {8, 8}}, at::kFloat, [](const Training& t) {
           const auto [y, sum] = kernels::AddRmsNorm(t.input, t.input * 2, t.weights[0], 1e-6);
           return (kernels::Swiglu(at::linear(y, t.weights[1]), at::linear(y, t.weights[2])) + sum)
               .pow(2)
               .sum();
         });
       }},
      {"frozen",
       [] {
         Training training = Make({{8, 8}, {8, 8}}, at::kFloat, [](const Training& t) {
           return at::linear(at::linear(t.input, t.weights[0]), t.weights[1]).pow(2).sum();
         });
         training.weights[0].requires_grad_(false);
         return training;
       }},
      {"accumulated in the step",
       [] {
         return Make({{8, 8}}, at::kFloat, [](const Training& t) {
           torch::autograd::backward({at::linear(t.input, t.weights[0]).pow(2).sum()}, {});
           return at::linear(t.input * 3, t.weights[0]).sin().sum();
         });
       }},
      {"layer norm, convolution and an index",
       [] {
         return Make({{8}, {2, 1, 3}}, at::kFloat, [](const Training& t) {
           const at::Tensor x = at::layer_norm(t.input, {8}, t.weights[0]);
           const at::Tensor y = at::conv1d(x.unsqueeze(1), t.weights[1]);
           return at::gelu(y).index_select(0, at::arange(4)).softmax(-1).cumsum(-1).square().sum();
         });
       }},
  };
  return *kCases;
}

void Feed(Training* training, int step) {
  training->input.copy_(at::arange(48).view({6, 8}).add(step).sin());
}

TEST(RecordingTest, AReplayIsTheSameBitsAsTheStep) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    std::vector<at::Tensor> losses;
    Training eager = one.make();
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor start = generator.get_state();
    for (int step = 0; step < 8; ++step) {
      Feed(&eager, step);
      eager.Step();
      losses.push_back(eager.last_loss);
    }

    Training replayed = one.make();
    generator.set_state(start);
    Tape tape;
    for (int step = 0; step < 8; ++step) {
      Feed(&replayed, step);
      if (step == 1) Record(&tape, [&] { replayed.Step(); });
      if (step == 0) replayed.Step();
      if (step > 1) {
        ASSERT_EQ(tape.Mismatch(), "");
        tape.Replay();
      }
      EXPECT_TRUE(SameBits(replayed.last_loss, losses[step])) << step;
    }

    for (size_t i = 0; i < eager.weights.size(); ++i)
      EXPECT_TRUE(SameBits(replayed.weights[i], eager.weights[i])) << i;
    EXPECT_GT(tape.stats().operators, 0);
  }
}

TEST(RecordingTest, HeaderExample) {
  const at::Tensor x = at::ones({3}), total = at::zeros({3});
  Tape tape;
  Record(&tape, [&] { total.add_(x * 2); });
  EXPECT_EQ(tape.stats().operators, 2);

  x.fill_(5);
  tape.Replay();

  EXPECT_TRUE(at::equal(total, at::full({3}, 12.0)));
}

TEST(RecordingTest, GradientsAreAsAfterTheStep) {
  const at::Tensor x = at::ones({3}), w = at::ones({3}).requires_grad_();
  Tape tape;
  Record(&tape, [&] { torch::autograd::backward({(w * x).sum()}, {}); });
  EXPECT_THAT(tape.Mismatch(), HasSubstr("has a gradient, and had none"));

  w.mutable_grad() = at::Tensor();
  x.fill_(4);
  EXPECT_EQ(tape.Mismatch(), "");
  tape.Replay();

  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 4.0)));
}

TEST(RecordingTest, AGradientFromBeforeIsAddedTo) {
  const at::Tensor x = at::ones({3}), w = at::ones({3}).requires_grad_();
  w.mutable_grad() = at::ones({3});
  Tape tape;
  Record(&tape, [&] { torch::autograd::backward({(w * x).sum()}, {}); });
  ASSERT_EQ(tape.Mismatch(), "");

  tape.Replay();

  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 3.0)));
}

TEST(RecordingTest, AnotherGradientIsAddedToAsWell) {
  const at::Tensor x = at::ones({3}), w = at::ones({3}).requires_grad_();
  w.mutable_grad() = at::ones({3});
  Tape tape;
  Record(&tape, [&] { torch::autograd::backward({(w * x).sum()}, {}); });

  w.mutable_grad() = at::full({3}, 7.0);
  ASSERT_EQ(tape.Mismatch(), "");
  tape.Replay();

  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 8.0)));
}

TEST(RecordingTest, AGradientThatIsReplacedFirstMayBeAnything) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  Tape tape;
  Record(&tape, [&] {
    Recording::NoteGradReplaced(w);
    w.mutable_grad() = at::Tensor();
    torch::autograd::backward({(w * 2).sum()}, {});
  });
  ASSERT_EQ(tape.Mismatch(), "");

  w.mutable_grad() = at::ones({3});
  ASSERT_EQ(tape.Mismatch(), "");
  tape.Replay();

  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 2.0)));
}

TEST(RecordingTest, MovedMemoryAndChangedGradientsAreSeen) {
  const at::Tensor x = at::ones({3}), w = at::ones({3}).requires_grad_();
  Tape tape;
  Record(&tape, [&] { w.detach().add_(x); });
  ASSERT_EQ(tape.Mismatch(), "");

  x.set_data(at::ones({3}));
  EXPECT_THAT(tape.Mismatch(), HasSubstr("the memory of a tensor of shape [3] has moved"));

  Tape other;
  Record(&other, [&] { w.mul(x); });
  w.requires_grad_(false);
  EXPECT_THAT(other.Mismatch(), HasSubstr("requires_grad of a tensor of shape [3] has changed"));
}

TEST(RecordingTest, AnotherShapeOfATensorIsSeen) {
  const at::Tensor x = at::arange(6.0).view({2, 3}), total = at::zeros({});
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"of shape [2, 3] has another shape, stride, offset or dtype, and shape [3, 2]",
       [&] { x.t_(); }},
      {"and shape [2, 2]",
       [&] {
         x.resize_({2, 2});
       }},
      {"and shape [2, 3]",
       [&] {
         x.as_strided_({2, 3}, {1, 2});
       }},
      {"and shape [2, 3]",
       [&] {
         x.as_strided_({2, 3}, {0, 1}, 1);
       }},
  };
  for (const auto& [message, change] : changes) {
    Tape tape;
    Record(&tape, [&] { total.add_(x.select(0, 1).sum()); });
    ASSERT_EQ(tape.Mismatch(), "");

    change();

    EXPECT_THAT(tape.Mismatch(), HasSubstr(message));
    x.as_strided_({2, 3}, {3, 1}, 0);
    EXPECT_EQ(tape.Mismatch(), "");
  }
}

TEST(RecordingTest, ACaughtErrorEndsTheRecording) {
  const at::Tensor x = at::ones({4}), total = at::zeros({});
  const std::vector<std::pair<std::string, std::function<void()>>> steps = {
      {"_local_scalar_dense returns a value", [&] { (void)x.sum().item(); }},
      {"out of range", [&] { (void)x.index_select(0, at::full({1}, 9)); }},
  };
  for (const auto& [message, step] : steps) {
    Tape tape;
    EXPECT_THAT(MessageOf([&, &run = step] {
                  Record(&tape, [&] {
                    EXPECT_NE(MessageOf(run), "");
                    total.add_(1);
                  });
                }),
                AllOf(HasSubstr("the function caught an operator's error"), HasSubstr(message)));
  }
}

TEST(RecordingTest, RepeatsNeedTheirSum) {
  const at::Tensor x = at::arange(3), total = at::zeros({6}), counts = at::tensor({1, 2, 3});
  Tape refused;
  EXPECT_THAT(
      MessageOf([&] { Record(&refused, [&] { total.add_(at::repeat_interleave(x, counts)); }); }),
      HasSubstr("repeat_interleave returns a shape that depends on values"));

  Tape tape;
  total.zero_();
  Record(&tape,
         [&] { total.add_(at::repeat_interleave(x, counts, /*dim=*/0, /*output_size=*/6)); });
  counts.copy_(at::tensor({4, 2, 0}));
  tape.Replay();

  EXPECT_TRUE(at::equal(total, at::tensor({0., 1., 1., 2., 3., 3.})));
}

TEST(RecordingTest, AReplayCountsItsWrites) {
  const at::Tensor w = at::ones({3});
  Tape tape;
  Record(&tape, [&] { w.add_(1); });
  const auto before = w._version();

  tape.Replay();

  EXPECT_GT(w._version(), before);
}

TEST(RecordingTest, AConstantThatIsWrittenStartsAnew) {
  const at::Tensor total = at::zeros({});
  Tape tape;
  Record(&tape, [&] {
    const at::Tensor one = c10::scalar_to_tensor(1.0);  // without an operator
    total.add_(one);
    one.mul_(3);
    total.add_(one);
  });

  tape.Replay();
  tape.Replay();

  EXPECT_EQ(total.item<double>(), 12);
}

TEST(RecordingTest, NewMemoryIsFilledInPieces) {
  const at::Tensor x = at::ones({32}), total = at::zeros({64});
  Tape tape;
  Record(&tape, [&] {
    const at::Tensor both = at::empty({64});
    both.narrow(0, 0, 32).copy_(x);
    both.narrow(0, 32, 32).copy_(x * 2);
    total.add_(both);
  });
  EXPECT_EQ(tape.stats().allocating, 1);  // x * 2

  x.fill_(5);
  tape.Replay();

  EXPECT_EQ(total.sum().item<double>(), 32 * (1 + 2) + 32 * (5 + 10));
}

TEST(RecordingTest, WhatCannotBeRepeatedIsRefused) {
  const at::Tensor x = at::ones({4}), big = at::ones({64});
  const std::vector<std::pair<std::string, std::function<void()>>> steps = {
      {"aten::_local_scalar_dense returns a value to the program", [&] { (void)x.sum().item(); }},
      {"aten::equal returns a value", [&] { (void)at::equal(x, big); }},
      {"aten::resize_ changes the shape or the memory", [&] { at::ones({2}).resize_({400}); }},
      {"aten::unsqueeze_ changes the shape", [&] { at::Tensor(x).unsqueeze_(0); }},
      {"whose values no operator computed",
       [&] {
         const at::Tensor made = at::empty({64});
         made.data_ptr<float>()[0] = 1;
         big.add_(made);
       }},
      {"is Sparse on cpu", [&] { (void)x.to_sparse(); }},
      {"generator's state was set", [&] { at::manual_seed(3); }},
      {"a graph is being recorded already",
       [&] {
         Tape inner;
         const Recording recording(&inner);
       }},
  };
  for (const auto& [message, step] : steps) {
    Tape tape;
    EXPECT_THAT(MessageOf([&, &run = step] { Record(&tape, run); }), HasSubstr(message));
  }
  EXPECT_EQ(x.sum().item<double>(), 4);  // the rules end with the recording
}

TEST(RecordingTest, TwoTapesShareAModel) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  Tape add, scale;
  const auto step = [&](double factor) {
    torch::autograd::backward({(w * factor).sum()}, {});
    const at::NoGradGuard no_grad;
    w.sub_(w.grad());
    w.mutable_grad() = at::Tensor();
  };
  Record(&add, [&] { step(1); });
  Record(&scale, [&] { step(-3); });

  add.Replay();
  scale.Replay();
  ASSERT_EQ(add.Mismatch(), "");

  EXPECT_TRUE(at::equal(w, at::full({3}, 5.0)));
}

}  // namespace
}  // namespace lockstep::driver
