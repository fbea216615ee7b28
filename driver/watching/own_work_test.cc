#include "driver/watching/own_work.h"

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/agreement/socket_collective.h"
#include "torch/csrc/autograd/engine.h"

namespace lockstep::driver {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;

// A clock of this thread that goes forward only when told to.
class ToldClock {
 public:
  ToldClock() {
    OwnWork::OfThisThread() = OwnWork();
    OwnWork::OfThisThread().set_clock([this] { return now_; });
  }
  ToldClock(const ToldClock&) = delete;
  ToldClock& operator=(const ToldClock&) = delete;
  ~ToldClock() { OwnWork::OfThisThread() = OwnWork(); }

  void Pass(int64_t nanoseconds) { now_ += nanoseconds; }

 private:
  int64_t now_ = 5 * kSecond;
};

// Two ranks that say the same. Waiting for the other one takes `wait` of the clock.
class TwinCollective : public sharding::Collective {
 public:
  TwinCollective(ToldClock& clock, int64_t wait, std::vector<std::string>* sent = nullptr)
      : clock_(clock), wait_(wait), sent_(sent) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    if (sent_ != nullptr) sent_->push_back(bytes);
    return std::make_unique<Gathering>(*this, bytes);
  }
  absl::StatusOr<std::vector<std::string>> GatherWithParts(const std::string& message,
                                                           const Parts&) override {
    if (sent_ != nullptr) sent_->push_back(message);
    return Gathering(*this, message).Wait();
  }

 private:
  class Gathering : public Pending {
   public:
    Gathering(TwinCollective& twin, std::string bytes) : twin_(twin), bytes_(std::move(bytes)) {}
    absl::StatusOr<std::vector<std::string>> Wait() override {
      twin_.clock_.Pass(twin_.wait_);
      return std::vector<std::string>{bytes_, bytes_};
    }

   private:
    TwinCollective& twin_;
    std::string bytes_;
  };

  ToldClock& clock_;
  int64_t wait_;
  std::vector<std::string>* sent_;
};

// Waiting for it, or for its future as the Reducer does, takes 3 s of the clock.
class SlowWork : public c10d::Work {
 public:
  explicit SlowWork(ToldClock& clock) : clock_(clock) {}
  bool wait(std::chrono::milliseconds) override {
    clock_.Pass(3 * kSecond);
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future->markCompleted(c10::IValue(7));
    return future;
  }
  std::vector<at::Tensor> result() override { return {at::ones({2})}; }

 private:
  ToldClock& clock_;
};

// Runs `body` as each of these ranks of the world, on threads that real sockets connect.
void RunRanks(const std::vector<int>& ranks,
              const std::function<void(int rank, std::unique_ptr<sharding::Collective>)>& body) {
  std::vector<std::promise<std::string>> promises(ranks.size());
  std::vector<std::shared_future<std::string>> addresses;
  for (auto& promise : promises) addresses.push_back(promise.get_future().share());
  std::vector<std::thread> threads;
  for (size_t position = 0; position < ranks.size(); ++position) {
    threads.emplace_back([&, position] {
      const auto exchange =
          [&](const std::string& own,
              const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
        promises[position].set_value(own);
        std::vector<std::string> asked;
        for (const int other : positions)
          asked.push_back(addresses[static_cast<size_t>(other)].get());
        return asked;
      };
      auto collective = sharding::SocketCollective::Connect(
          static_cast<int>(position), static_cast<int>(ranks.size()), "127.0.0.1", exchange,
          absl::Seconds(20), ranks);
      ASSERT_TRUE(collective.ok()) << collective.status();
      body(ranks[position], *std::move(collective));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(OwnWork, HeaderExample) {
  RunRanks({0, 1, 2, 3}, [](int rank, std::unique_ptr<sharding::Collective> sockets) {
    ToldClock clock;
    clock.Pass(rank * 100 * kSecond);  // the machines' clocks differ
    auto collective = CarryOwnWork(std::move(sockets), /*world_size=*/4);

    EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());
    clock.Pass(rank == 2 ? 5 * kSecond : 2 * kSecond);
    EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());

    EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), ElementsAre(2, 2, 5, 2));
  });
}

TEST(OwnWork, TimesAreByRankWhereTheGroupHasAnotherOrder) {
  RunRanks({2, 0, 1}, [](int rank, std::unique_ptr<sharding::Collective> sockets) {
    ToldClock clock;
    auto collective = CarryOwnWork(std::move(sockets), /*world_size=*/3);

    EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());
    clock.Pass((rank + 1) * kSecond);
    EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());

    EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), ElementsAre(1, 2, 3));
  });
}

// Agreement makes its offer before the step, and asks for the decision after it.
TEST(OwnWork, AnOfferThatTravelsDuringTheStepHasTheTimeAtWhichItLeft) {
  RunRanks({0, 1}, [](int rank, std::unique_ptr<sharding::Collective> sockets) {
    ToldClock clock;
    auto collective = CarryOwnWork(std::move(sockets), /*world_size=*/2);
    auto offer = collective->StartAllGather("b");
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(offer->Wait().ok());
      offer = collective->StartAllGather("b");
      clock.Pass(rank == 1 ? 4 * kSecond : kSecond);
    }
    EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), ElementsAre(1, 4));  // step 0

    EXPECT_TRUE(offer->Wait().ok());

    EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), ElementsAre(1, 4));  // step 1
  });
}

TEST(OwnWork, MessagesComeAsTheyWereSent) {
  RunRanks({0, 1}, [](int rank, std::unique_ptr<sharding::Collective> sockets) {
    auto collective = CarryOwnWork(std::move(sockets), /*world_size=*/2);
    for (const std::string& text : {std::string(), std::string("\0x", 2)}) {
      const auto messages = collective->StartAllGather(text + std::to_string(rank))->Wait();
      ASSERT_TRUE(messages.ok());
      EXPECT_THAT(*messages, ElementsAre(text + "0", text + "1"));
    }
  });
}

TEST(OwnWork, WaitingForTheOthersIsNotWork) {
  ToldClock clock;
  auto collective =
      CarryOwnWork(std::make_unique<TwinCollective>(clock, 9 * kSecond), /*world_size=*/2);
  const int64_t before = OwnWork::OfThisThread().Now();

  EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());
  clock.Pass(kSecond);
  EXPECT_TRUE(collective->GatherWithParts("b", {}).ok());
  EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());

  EXPECT_EQ(OwnWork::OfThisThread().Now() - before, kSecond);
  EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), ElementsAre(1, 1));
}

TEST(OwnWork, AGroupOfSomeRanksCarriesNoClocks) {
  ToldClock clock;
  std::vector<std::string> sent;
  auto collective =
      CarryOwnWork(std::make_unique<TwinCollective>(clock, kSecond, &sent), /*world_size=*/3);
  const int64_t before = OwnWork::OfThisThread().Now();

  EXPECT_TRUE(collective->StartAllGather("bytes")->Wait().ok());
  EXPECT_TRUE(collective->StartAllGather("bytes")->Wait().ok());

  EXPECT_THAT(sent, ElementsAre("bytes", "bytes"));
  EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), IsEmpty());
  EXPECT_EQ(OwnWork::OfThisThread().Now(), before);  // but its waits are waits
}

TEST(OwnWork, AClockIsEightBytesAndPartsHaveNone) {
  ToldClock clock;
  std::vector<std::string> sent;
  auto collective =
      CarryOwnWork(std::make_unique<TwinCollective>(clock, kSecond, &sent), /*world_size=*/2);

  EXPECT_TRUE(collective->StartAllGather("bytes")->Wait().ok());
  EXPECT_TRUE(collective->GatherWithParts("bytes", {}).ok());

  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].size(), 5u + 8u);
  EXPECT_EQ(sent[1], "bytes");
}

TEST(OwnWork, TheTimesAreThoseSinceTheyWereTaken) {
  ToldClock clock;
  auto collective = CarryOwnWork(std::make_unique<TwinCollective>(clock, 0), /*world_size=*/2);
  OwnWork& work = OwnWork::OfThisThread();
  EXPECT_THAT(work.TakeSeconds(), IsEmpty());  // as in a run of one rank

  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());
    clock.Pass(kSecond);
  }

  EXPECT_THAT(work.TakeSeconds(), ElementsAre(2, 2));
  EXPECT_THAT(work.TakeSeconds(), IsEmpty());
  EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());
  EXPECT_THAT(work.TakeSeconds(), ElementsAre(1, 1));
}

TEST(OwnWork, AnOlderGatheringThatEndsLaterIsLeftOut) {
  ToldClock clock;
  auto collective = CarryOwnWork(std::make_unique<TwinCollective>(clock, 0), /*world_size=*/2);
  EXPECT_TRUE(collective->StartAllGather("first")->Wait().ok());
  auto older = collective->StartAllGather("older");
  clock.Pass(2 * kSecond);
  EXPECT_TRUE(collective->StartAllGather("newer")->Wait().ok());
  EXPECT_TRUE(older->Wait().ok());

  EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), ElementsAre(2, 2));
}

TEST(OwnWork, TheClockOfThisMachineGoesForward) {
  OwnWork work;
  const int64_t before = work.Now();
  while (work.Now() == before) {
  }
  EXPECT_GT(work.Now(), before);
}

TEST(MeasureWait, WaitingForACollectiveIsNotWork) {
  ToldClock clock;
  const auto work = MeasureWait(c10::make_intrusive<SlowWork>(clock));
  const int64_t before = OwnWork::OfThisThread().Now();

  EXPECT_TRUE(work->wait());
  {
    const Waiting outer;
    EXPECT_TRUE(work->wait());
    clock.Pass(kSecond);
  }
  clock.Pass(2 * kSecond);

  EXPECT_EQ(OwnWork::OfThisThread().Now() - before, 2 * kSecond);
  EXPECT_EQ(work->result().size(), 1u);
  EXPECT_EQ(work->getFuture()->value().toInt(), 7);  // outside of a backward pass
  EXPECT_EQ(MeasureWait(nullptr), nullptr);
}

// Runs a backward pass that takes 2 s of the clock. Like the Reducer's it starts two collectives,
// and waits for them at its end, which takes 3 s.
void RunBackwardLikeTheReducer(ToldClock& clock, bool fails = false) {
  at::Tensor x = at::ones({2}).set_requires_grad(true);
  at::Tensor y = x * 2;
  y.register_hook([&](const at::Tensor&) {
    const auto work = MeasureWait(c10::make_intrusive<SlowWork>(clock));
    work->getFuture();
    clock.Pass(2 * kSecond);
    work->getFuture();
    torch::autograd::Engine::get_default_engine().queue_callback([&clock, fails] {
      clock.Pass(3 * kSecond);
      if (fails) throw std::runtime_error("a rank was lost");
    });
  });
  y.sum().backward();
}

TEST(MeasureWait, TheEndOfABackwardPassThatAveragesGradientsIsNotWork) {
  ToldClock clock;
  const int64_t before = OwnWork::OfThisThread().Now();

  RunBackwardLikeTheReducer(clock);
  RunBackwardLikeTheReducer(clock);

  EXPECT_EQ(OwnWork::OfThisThread().Now() - before, 4 * kSecond);
}

TEST(MeasureWait, AfterAFailedBackwardPassTheNextMessageGoesOnWithWork) {
  ToldClock clock;
  auto collective = CarryOwnWork(std::make_unique<TwinCollective>(clock, 0), /*world_size=*/2);
  EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());

  EXPECT_THROW(RunBackwardLikeTheReducer(clock, /*fails=*/true), std::runtime_error);
  EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());
  clock.Pass(7 * kSecond);
  EXPECT_TRUE(collective->StartAllGather("b")->Wait().ok());

  EXPECT_THAT(OwnWork::OfThisThread().TakeSeconds(), ElementsAre(DoubleEq(9), DoubleEq(9)));
}

}  // namespace
}  // namespace lockstep::driver
