#include "base/torch/weight_copies.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "ATen/ATen.h"
#include "c10/core/InferenceMode.h"
#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

constexpr int64_t kForm = 3;

// A parameter of 16 bytes, and a copy of 8.
at::Tensor Parameter() { return at::rand({2, 2}).set_requires_grad(true); }

bool IsFound(const at::Tensor& weight, int64_t form = kForm) {
  return FindCopy(weight, form).has_value();
}

void Keep(const at::Tensor& weight, int64_t form = kForm) {
  KeepCopy(weight, form, {at::empty({8}, at::kByte)});
}

class WeightCopies : public ::testing::Test {
 protected:
  WeightCopies() { ForgetAllCopies(); }
};

TEST_F(WeightCopies, AreFoundWhileTheWeightIsUnchanged) {
  const at::Tensor weight = Parameter(), other = Parameter();
  const at::Tensor copy = at::ones({3});
  EXPECT_FALSE(IsFound(weight));
  KeepCopy(weight, kForm, {copy});

  EXPECT_TRUE(FindCopy(weight, kForm)->at(0).is_same(copy));
  EXPECT_TRUE(IsFound(weight.detach())) << "an alias shares the version";
  EXPECT_FALSE(IsFound(weight, kForm + 1));
  EXPECT_FALSE(IsFound(other));
  const at::NoGradGuard no_grad;
  weight.add_(1);
  EXPECT_FALSE(IsFound(weight));
}

TEST_F(WeightCopies, AFusedOptimizerRaisesTheVersion) {
  const auto zeros = [] { return at::zeros({2, 2}); };
  const std::function<void(const at::Tensor&)> kUpdates[] = {
      [&](const at::Tensor& w) {
        at::_fused_adamw_({w}, {zeros()}, {zeros()}, {zeros()}, {}, {at::ones({})}, 0.1, 0.9, 0.99,
                          0, 1e-8, false, false);
      },
      [&](const at::Tensor& w) {
        at::_fused_adam_({w}, {zeros()}, {zeros()}, {zeros()}, {}, {at::ones({})},
                         at::tensor(0.1, at::kDouble), 0.9, 0.99, 0, 1e-8, false, false);
      },
      [&](const at::Tensor& w) {
        at::_fused_sgd_({w}, {zeros()}, {}, 0, 0, 0.1, 0, false, false, false);
      },
      [&](const at::Tensor& w) {
        at::_fused_adagrad_({w}, {zeros()}, {zeros()}, {at::ones({})}, 0.1, 0, 0, 1e-8, false);
      },
  };
  for (const auto& update : kUpdates) {
    const at::Tensor weight = Parameter();
    Keep(weight);
    const at::NoGradGuard no_grad;
    update(weight);
    EXPECT_FALSE(IsFound(weight)) << "update " << &update - kUpdates;
  }
}

TEST_F(WeightCopies, AWriteThroughAnAliasIsAChange) {
  const at::Tensor weight = Parameter();
  Keep(weight);
  weight.detach()[0].zero_();
  EXPECT_FALSE(IsFound(weight));
}

// Two tensors over one memory may count their writes apart, and come to the same number.
TEST_F(WeightCopies, AnAliasWithAnotherVersionFindsNone) {
  const at::Tensor weight = Parameter(), alias = weight.variable_data();
  ASSERT_TRUE(weight.is_alias_of(alias));
  Keep(weight);
  while (alias._version() < weight._version()) alias.mul_(2);
  EXPECT_EQ(weight._version(), alias._version());
  EXPECT_FALSE(IsFound(alias));
}

TEST_F(WeightCopies, AnotherShapeDtypeOrMemoryFindsNone) {
  const at::Tensor weight = Parameter();
  Keep(weight);
  const at::Tensor alias = weight.detach();
  EXPECT_FALSE(IsFound(alias.view({4})));
  EXPECT_FALSE(IsFound(alias.t()));
  EXPECT_FALSE(IsFound(alias[1]));
  EXPECT_FALSE(IsFound(alias.view(at::kInt)));
  weight.set_data(at::rand({2, 2}));
  EXPECT_FALSE(IsFound(weight));
  Keep(weight);
  const at::Tensor other = at::rand({2, 2});
  weight.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      std::move(other.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  EXPECT_FALSE(IsFound(weight));
}

TEST_F(WeightCopies, WritesThroughAliasesWithOtherVersionsAreSeenOnceCounted) {
  const at::Tensor weight = Parameter();
  const at::NoGradGuard no_grad;
  at::Tensor alias = weight.variable_data();
  CountWritesThrough(alias, weight.storage());
  for (int i = 0; i < 3; ++i) {
    Keep(weight);
    EXPECT_TRUE(IsFound(weight));
    alias.view({4}).add_(1);
    EXPECT_FALSE(IsFound(weight));
  }
  Keep(weight);
  alias.add_(1);
  alias = weight.variable_data();
  CountWritesThrough(alias, weight.storage());
  EXPECT_FALSE(IsFound(weight)) << "a write of an alias that is gone";
  Keep(weight);
  EXPECT_TRUE(IsFound(weight));
  alias.add_(1);
  alias.reset();
  CountWritesThrough(weight, weight.storage());
  EXPECT_FALSE(IsFound(weight));
}

TEST_F(WeightCopies, AChangeFreesAllThatAreOutOfDate) {
  const at::Tensor a = Parameter(), b = Parameter(), c = Parameter();
  for (const at::Tensor& weight : {a, b, c}) Keep(weight);
  Keep(a, kForm + 1);
  EXPECT_EQ(BytesOfCopies(), 32);
  const at::NoGradGuard no_grad;
  a.mul_(2);
  b.mul_(2);
  Keep(a);
  EXPECT_EQ(BytesOfCopies(), 16);
  EXPECT_TRUE(IsFound(c));
  EXPECT_FALSE(IsFound(a, kForm + 1));
}

TEST_F(WeightCopies, ThoseOfWeightsThatAreGoneAreFreed) {
  for (int i = 0; i < 1000; ++i) Keep(Parameter());
  EXPECT_LE(BytesOfCopies(), 16 * 8);
}

TEST_F(WeightCopies, AreForgottenByStorage) {
  const at::Tensor both = at::rand({2, 4}), other = Parameter();
  Keep(both[0]);
  Keep(both[1]);
  Keep(other);
  ForgetCopiesOf(both.storage());
  EXPECT_EQ(BytesOfCopies(), 8);
  EXPECT_TRUE(IsFound(other));
  {
    const WithoutCopiesFromBefore recording;
    EXPECT_FALSE(IsFound(other));
    Keep(other);
    EXPECT_TRUE(IsFound(other));
  }
  EXPECT_FALSE(IsFound(other));
}

TEST_F(WeightCopies, AGivenCopyStaysUntilItsStorageIsForgotten) {
  // A weight without memory, whose address nobody may ask for.
  const at::Tensor weight = Parameter();
  weight.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "not here");
  const at::Tensor values = at::ones({8}, at::kByte);
  Keep(weight, kForm + 1);
  EXPECT_FALSE(FindGivenCopy(weight, kForm + 1).has_value());
  GiveCopy(weight, kForm, {values});

  EXPECT_EQ(BytesOfCopies(), 8) << "a given copy takes no memory of its own";
  ForgetAllCopies();
  EXPECT_FALSE(IsFound(weight, kForm + 1));
  EXPECT_TRUE(FindCopy(weight, kForm)->at(0).is_same(values));
  EXPECT_TRUE(FindGivenCopy(weight, kForm)->at(0).is_same(values));
  Keep(weight, kForm + 1);
  ForgetCopiesOf(weight.storage());
  EXPECT_FALSE(IsFound(weight) || IsFound(weight, kForm + 1));
  EXPECT_EQ(BytesOfCopies(), 0);
}

TEST_F(WeightCopies, ResultsAndTensorsWithoutVersionsAreNotKept) {
  const at::Tensor result = Parameter() * 2, meta = at::empty({2}, at::kMeta);
  Keep(result);
  Keep(meta);
  const c10::InferenceMode inference;
  Keep(at::rand({2}));
  EXPECT_EQ(BytesOfCopies(), 0);
}

}  // namespace
}  // namespace lockstep::base
