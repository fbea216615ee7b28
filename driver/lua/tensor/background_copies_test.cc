#include "driver/lua/tensor/background_copies.h"

#include <pthread.h>
#include <signal.h>

#include <cstdint>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "ATen/Functions.h"
#include "absl/status/status.h"
#include "driver/lua/tensor/bits.h"
#include "gtest/gtest.h"

namespace lockstep::lua {
namespace {

// Large enough that the thread is still reading when an operator begins.
constexpr int64_t kNumbers = int64_t{1} << 23;

struct Training {
  at::Tensor weight = at::randn({kNumbers});
  at::Tensor state = at::rand({kNumbers});
};

// An operator that writes to the tensors of a Training.
struct Writer {
  std::string name;
  std::function<void(Training&)> write;
};

std::vector<Writer> Writers() {
  return {
      {"in place", [](Training& t) { t.weight.mul_(2); }},
      {"a view",
       [](Training& t) {
         t.state.view({2, -1})[1].zero_();
       }},
      {"out", [](Training& t) { at::mul_out(t.weight, t.state, t.state); }},
      {"a list",
       [](Training& t) {
         at::_foreach_mul_({t.state, t.weight}, 2);
       }},
      {"running means",
       [](Training& t) {
         at::batch_norm(at::ones({2, 4}), {}, {}, t.weight.narrow(0, 0, 4), t.state.narrow(0, 0, 4),
                        true, 0.5, 1e-5, false);
       }},
      {"AdamW",
       [](Training& t) {
         const at::Tensor gradient = at::ones({kNumbers});
         const at::Tensor squares = at::rand({kNumbers});
         const at::Tensor step = at::ones({});
         at::_fused_adamw_({t.weight}, {gradient}, {t.state}, {squares}, {}, {step}, 0.1, 0.9, 0.99,
                           0.01, 1e-8, false, false);
       }},
  };
}

TEST(BackgroundCopies, WhatWritesWaitsUntilTheTensorsAreRead) {
  for (const Writer& writer : Writers()) {
    SCOPED_TRACE(writer.name);
    Training training;
    const at::Tensor weight = training.weight.clone();
    const at::Tensor state = training.state.clone();
    const at::Tensor to = at::zeros({kNumbers});
    const at::Tensor state_to = at::zeros({kNumbers});
    BackgroundCopies copies({{training.weight, to, true}, {training.state, state_to, false}});
    writer.write(training);
    EXPECT_TRUE(copies.is_read());
    EXPECT_EQ(training.weight.use_count(), 1);
    ASSERT_TRUE(copies.Wait().ok());
    EXPECT_TRUE(at::equal(to, weight));
    EXPECT_TRUE(at::equal(state_to, state));
    EXPECT_EQ(copies.sums(), std::vector<int64_t>{SumOfBits(weight)});
    EXPECT_FALSE(at::equal(training.weight, weight) && at::equal(training.state, state));
  }
}

// If it waited, the tensors would be read each time that it is done.
TEST(BackgroundCopies, WhatReadsDoesNotWait) {
  bool has_gone_on = false;
  for (int i = 0; i < 50 && !has_gone_on; ++i) {
    Training training;
    const at::Tensor to = at::zeros({kNumbers});
    BackgroundCopies copies({{training.weight, to, false}, {training.state, {}, true}});
    at::Tensor own = training.weight.narrow(0, 0, 8) + 1;
    own.mul_(training.state.narrow(0, 0, 8));
    has_gone_on = !copies.is_read();
    ASSERT_TRUE(copies.Wait().ok());
    EXPECT_TRUE(at::equal(to, training.weight));
    EXPECT_EQ(copies.sums(), std::vector<int64_t>{SumOfBits(training.state)});
  }
  EXPECT_TRUE(has_gone_on);
}

TEST(BackgroundCopies, ShapesThatAreNotContiguousAndTensorsWithoutElements) {
  const at::Tensor turned = at::randn({6, 5}).t();
  const at::Tensor empty = at::zeros({0, 3});
  const at::Tensor turned_to = at::empty({5, 6});
  const at::Tensor empty_to = at::empty({0, 3});
  BackgroundCopies copies({{turned, turned_to, true}, {empty, empty_to, true}, {turned, {}, true}});
  ASSERT_TRUE(copies.Wait().ok());
  EXPECT_TRUE(at::equal(turned_to, turned));
  const int64_t sum = SumOfBits(turned.contiguous());
  EXPECT_EQ(copies.sums(), (std::vector<int64_t>{sum, 0, sum}));
}

TEST(BackgroundCopies, ACopyThatFailsIsAnErrorAndNobodyWaitsForIt) {
  at::Tensor from = at::zeros({3});
  BackgroundCopies copies({{from, at::zeros({2}), false}});
  from.add_(1);
  EXPECT_EQ(copies.Wait().code(), absl::StatusCode::kInternal);
}

// Makes no threads while it lives: their stacks would not fit into the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 47);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST(BackgroundCopies, WithoutAThreadNothingWaitsAndSignalsStillCome) {
  at::Tensor from = at::zeros({3});
  const auto start = [&from] { BackgroundCopies({{from, at::zeros({3}), false}}); };
  {
    const NoThreads none;
    EXPECT_THROW(start(), std::system_error);
  }
  from.add_(1);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
}

TEST(BackgroundCopies, AnotherOneReleasesTheOneBefore) {
  Training training;
  const at::Tensor to = at::zeros({kNumbers});
  const at::Tensor again = at::zeros({kNumbers});
  BackgroundCopies first({{training.weight, to, false}});
  BackgroundCopies second({{training.weight, again, false}});
  EXPECT_TRUE(first.is_read());
  training.weight.zero_();
  EXPECT_FALSE(at::equal(to, training.weight));
  EXPECT_TRUE(at::equal(to, again));
}

}  // namespace
}  // namespace lockstep::lua
