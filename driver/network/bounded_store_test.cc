#include "driver/network/bounded_store.h"

#include <future>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace lockstep::driver {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Answers `check` only after a signal from the test.
class StoppedStore : public c10d::HashStore {
 public:
  explicit StoppedStore(std::shared_future<void> goes_on) : goes_on_(std::move(goes_on)) {}

  bool check(const std::vector<std::string>& keys) override {
    goes_on_.wait();
    return HashStore::check(keys);
  }

 private:
  std::shared_future<void> goes_on_;
};

c10::intrusive_ptr<c10d::Store> Bounded(c10::intrusive_ptr<c10d::Store> store) {
  return NewBoundedStore(
      "node1:29500", milliseconds(0), [store] { return store; }, milliseconds(40));
}

TEST(BoundedStore, AnswersAsTheStoreInside) {
  const auto store = NewBoundedStore("node1:29500", milliseconds(1000),
                                     [] { return c10::make_intrusive<c10d::HashStore>(); });

  store->set("a", std::string("1"));

  EXPECT_TRUE(store->check({"a"}));
  EXPECT_EQ(store->get_to_str("a"), "1");
  EXPECT_EQ(store->compareSet("a", std::string("1"), std::string("2")), "2");
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_THROW(store->wait({"a"}, milliseconds(1)), c10::DistStoreError);
}

TEST(BoundedStore, GivesUpAHostThatDoesNotAnswerAndNamesIt) {
  std::promise<void> goes_on;
  const auto store = Bounded(c10::make_intrusive<StoppedStore>(goes_on.get_future().share()));

  try {
    store->check({"a"});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const StoreIsSilent& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("store at node1:29500 does not answer"));
  }
  goes_on.set_value();
}

// Calls until the host answers.
template <typename Call>
auto AnswerOf(const Call& call) {
  for (;;) {
    try {
      return call();
    } catch (const StoreIsSilent&) {
    }
  }
}

TEST(BoundedStore, FailsAtOnceUntilTheHostAnswers) {
  std::promise<void> goes_on;
  const auto store = Bounded(c10::make_intrusive<StoppedStore>(goes_on.get_future().share()));
  EXPECT_THROW(store->check({"a"}), StoreIsSilent);

  EXPECT_THROW(store->add("n", 1), StoreIsSilent);
  EXPECT_THROW(store->set("a", std::string("1")), StoreIsSilent);
  goes_on.set_value();

  // It answers when the call that was given up has returned.
  EXPECT_GE(AnswerOf([&] { return store->add("n", 1); }), 1);
  EXPECT_FALSE(AnswerOf([&] { return store->check({"a"}); }));
}

TEST(BoundedStore, IsNotMadeWhereTheHostDoesNotAnswer) {
  std::promise<void> goes_on;
  const std::shared_future<void> answer = goes_on.get_future().share();
  const auto connect = [answer]() -> c10::intrusive_ptr<c10d::Store> {
    answer.wait();
    return c10::make_intrusive<c10d::HashStore>();
  };

  EXPECT_THROW(NewBoundedStore("node1:29500", milliseconds(0), connect, milliseconds(40)),
               StoreIsSilent);
  goes_on.set_value();
}

}  // namespace
}  // namespace lockstep::driver
