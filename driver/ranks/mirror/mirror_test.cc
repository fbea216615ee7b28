#include "driver/ranks/mirror/mirror.h"

#include <cstdint>
#include <vector>

#include "ATen/Functions.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRank = 1;
constexpr int kSize = 3;

at::Tensor Two() { return at::full({2}, 2.0); }

c10d::AllreduceOptions By(c10d::ReduceOp::RedOpType op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return options;
}

struct Reduction {
  c10d::ReduceOp::RedOpType op;
  double result;  // of 2 on each of three ranks
};

TEST(MirrorBackend, ReducesEqualValues) {
  const auto backend = NewMirrorBackend(kRank, kSize);
  for (const Reduction& reduction : {Reduction{c10d::ReduceOp::SUM, 6},
                                     {c10d::ReduceOp::AVG, 2},
                                     {c10d::ReduceOp::MIN, 2},
                                     {c10d::ReduceOp::MAX, 2}}) {
    std::vector<at::Tensor> tensors = {Two()};

    backend->allreduce(tensors, By(reduction.op))->wait();

    EXPECT_TRUE(at::equal(tensors[0], at::full({2}, reduction.result)));
  }
  std::vector<at::Tensor> tensors = {Two()};
  EXPECT_THROW(backend->allreduce(tensors, By(c10d::ReduceOp::PRODUCT)), c10::Error);
}

// c10d's Reducer takes the reduced gradients out of the future.
TEST(MirrorBackend, WorkIsDoneAndItsFutureHoldsTheTensors) {
  const auto backend = NewMirrorBackend(kRank, kSize);
  std::vector<at::Tensor> tensors = {Two()};

  const auto work = backend->allreduce(tensors, By(c10d::ReduceOp::SUM));

  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->getFuture()->completed());
  EXPECT_TRUE(work->getFuture()->value().toTensorVector()[0].is_same(tensors[0]));
}

TEST(MirrorBackend, GathersCopies) {
  const auto backend = NewMirrorBackend(kRank, kSize);
  std::vector<at::Tensor> inputs = {Two()};
  std::vector<std::vector<at::Tensor>> outputs = {{at::zeros({2}), at::zeros({2}), at::zeros({2})}};
  at::Tensor flat = at::zeros({6});

  backend->allgather(outputs, inputs, {});
  backend->_allgather_base(flat, inputs[0], {});

  for (const at::Tensor& output : outputs[0]) EXPECT_TRUE(at::equal(output, Two()));
  EXPECT_TRUE(at::equal(flat, at::full({6}, 2.0)));
}

TEST(MirrorBackend, ScattersThisRanksPart) {
  const auto backend = NewMirrorBackend(kRank, kSize);
  std::vector<std::vector<at::Tensor>> inputs = {
      {at::ones({1}), Two().slice(0, 0, 1), at::ones({1})}};
  std::vector<at::Tensor> outputs = {at::zeros({1})};
  at::Tensor flat_input = at::arange(6, at::kFloat);
  at::Tensor flat_output = at::zeros({2});

  backend->reduce_scatter(outputs, inputs, {});
  backend->_reduce_scatter_base(flat_output, flat_input, {});

  EXPECT_EQ(outputs[0].item<float>(), 6);
  EXPECT_EQ(flat_output[0].item<float>(), 3 * 2);
  EXPECT_EQ(flat_output[1].item<float>(), 3 * 3);
}

// A ring's chunks may differ by a token.
TEST(MirrorBackend, TakesFromThePreviousRankWhatThisRankGives) {
  const auto backend = NewMirrorBackend(kRank, kSize);
  at::Tensor input = at::arange(1, 4), output = at::full({4}, 7);
  std::vector<int64_t> gives(kSize, 0), takes(kSize, 0);
  gives[(kRank + 1) % kSize] = 3;
  takes[(kRank + kSize - 1) % kSize] = 4;

  backend->alltoall_base(output, input, takes, gives, {});

  EXPECT_TRUE(at::equal(output, at::tensor({1, 2, 3, 0}, at::kLong)));
}

TEST(MirrorBackend, ReceivingFromAnotherRankIsAnError) {
  const auto backend = NewMirrorBackend(kRank, kSize);
  std::vector<at::Tensor> tensors = {Two()};

  backend->send(tensors, 2, 0)->wait();

  try {
    backend->recv(tensors, 2, 0);
    FAIL() << "received from nobody";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr("what position 2 of the group would send"));
  }
}

TEST(MirrorCollective, EveryRankSaysTheSame) {
  const auto collective = NewMirrorCollective(kRank, kSize);

  EXPECT_EQ(collective->rank(), kRank);
  EXPECT_EQ(collective->size(), kSize);
  EXPECT_THAT(*collective->StartAllGather("go")->Wait(), ElementsAre("go", "go", "go"));
}

}  // namespace
}  // namespace lockstep::driver
