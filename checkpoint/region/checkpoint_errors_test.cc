#include <functional>
#include <optional>
#include <string>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/tanh.h"
#include "c10/core/InferenceMode.h"
#include "checkpoint/region/checkpoint.h"
#include "checkpoint/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The message of backward where the function behaves as `f(x, pass)`, pass 0 being forward.
std::string MessageWhere(const std::function<at::Tensor(const at::Tensor&, int)>& f,
                         CheckpointOptions options = {}) {
  options.rank = 3;
  int pass = 0;
  const at::Tensor x = Random({4, 4});
  const at::Tensor y = Call(
      Checkpoint(options), [&](const at::Tensor& in) { return f(in, pass++); }, x, "blocks.7");
  return MessageOf([&] { torch::autograd::backward({y.sum()}); });
}

TEST(CheckpointErrors, FewerTensorsThanInForward) {
  const std::string message = MessageWhere([](const at::Tensor& x, int pass) {
    return pass == 0 ? at::tanh(at::tanh(x)) : at::tanh(x);
  });

  EXPECT_THAT(message, HasSubstr("region blocks.7 on rank 3"));
  EXPECT_THAT(message, HasSubstr("saved 1 tensors for backward, forward saved 2"));
}

TEST(CheckpointErrors, MoreTensorsThanInForwardWhereTheFunctionRunsToItsEnd) {
  const auto f = [](const at::Tensor& x, int pass) {
    return pass == 0 ? at::tanh(x) : at::tanh(at::tanh(x));
  };

  EXPECT_EQ(MessageWhere(f), "no error");
  EXPECT_THAT(MessageWhere(f, {.early_stop = false}),
              HasSubstr("saved 2 tensors for backward, forward saved 1"));
}

TEST(CheckpointErrors, AnotherShapeDtypeOrDevice) {
  const auto shape = [](const at::Tensor& x, int pass) {
    return at::tanh(pass == 0 ? x : x.narrow(0, 0, 2));
  };
  const auto dtype = [](const at::Tensor& x, int pass) {
    return at::tanh(pass == 0 ? x : x.to(at::kFloat));
  };
  const auto device = [](const at::Tensor& x, int pass) {
    return at::tanh(pass == 0 ? x : x.to(at::kMeta));
  };

  EXPECT_THAT(MessageWhere(shape),
              HasSubstr("saved tensor 0 is Double {2, 4} on cpu, and was Double {4, 4} "
                        "on cpu in forward"))
      << MessageWhere(shape);
  EXPECT_THAT(MessageWhere(dtype), HasSubstr("is Float {4, 4} on cpu"));
  EXPECT_THAT(MessageWhere(device), HasSubstr("on meta"));
  EXPECT_THAT(MessageWhere(dtype, {.check_metadata = false}), Not(HasSubstr("checkpoint")));
}

TEST(CheckpointErrors, ASavedTensorThatTheFunctionModifiesInPlace) {
  const std::string message = MessageWhere([](const at::Tensor& x, int) {
    const at::Tensor y = at::tanh(x);
    const at::Tensor z = at::sigmoid(y);
    y.add_(1);
    return at::tanh(z);
  });

  EXPECT_THAT(message, HasSubstr("modified in place after it was saved"));
}

TEST(CheckpointErrors, AnInputModifiedBetweenForwardAndBackward) {
  const at::Tensor x = at::tanh(Random({4}));
  const at::Tensor y = Call(
      Checkpoint(), [](const at::Tensor& in) { return at::tanh(in); }, x);
  x.add_(1);

  EXPECT_THAT(MessageOf([&] { torch::autograd::backward({y.sum()}); }),
              HasSubstr("inplace operation"));
}

TEST(CheckpointErrors, AWeightModifiedBetweenForwardAndBackward) {
  const at::Tensor weight = Random({4, 4});
  const at::Tensor x = Random({4, 4});
  const auto change = [&] {
    const at::NoGradGuard no_grad;
    const at::Tensor same = weight;
    same.mul_(2);
  };
  // Alone, and as the view that linear saves.
  for (const bool transposed : {false, true}) {
    const at::Tensor y = Call(
        Checkpoint(),
        [&](const at::Tensor& in) { return at::tanh(in.matmul(transposed ? weight.t() : weight)); },
        x);
    change();

    const std::string message = MessageOf([&] { torch::autograd::backward({y.sum()}); });

    EXPECT_THAT(message, HasSubstr("a parameter at version"));
  }
}

TEST(CheckpointErrors, AnInputOfInferenceMode) {
  std::optional<at::Tensor> x;
  {
    const c10::InferenceMode inference;
    x = at::ones({4});
  }

  EXPECT_THAT(MessageOf([&] {
                Call(
                    Checkpoint(), [](const at::Tensor& in) { return at::tanh(in.clone()); }, *x);
              }),
              HasSubstr("input 0 was made in inference mode"));
}

TEST(CheckpointErrors, TwoUnpacksInOneBackwardCall) {
  struct Greedy : public torch::autograd::Function<Greedy> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      context->save_for_backward({x});
      return x * 2;
    }
    static Tensors backward(torch::autograd::AutogradContext* context, Tensors) {
      context->get_saved_variables();
      return context->get_saved_variables();
    }
  };

  EXPECT_THAT(MessageWhere([](const at::Tensor& x, int) { return Greedy::apply(x); }),
              HasSubstr("unpacked twice"));
}

}  // namespace
}  // namespace lockstep::checkpoint
