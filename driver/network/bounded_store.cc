#include "driver/network/bounded_store.h"

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

using std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

// The calls of one connection.
class Calls {
 public:
  Calls(std::string where, milliseconds time_to_answer)
      : where_(std::move(where)), time_to_answer_(time_to_answer) {}

  const std::string& where() const { return where_; }
  milliseconds time_to_answer() const { return time_to_answer_; }

  // Throws where a call was given up and has not returned: it holds the connection.
  void ExpectAnswers() const {
    if (*unanswered_ > 0) ThrowSilent();
  }

  // Returns what `call` does, which may take `time` and the time to answer.
  template <typename Call>
  auto Run(milliseconds time, Call call) const -> decltype(call()) {
    using Result = decltype(call());
    ExpectAnswers();
    enum Phase { kRunning, kReturned, kGivenUp };
    const auto phase = std::make_shared<std::atomic<int>>(kRunning);
    std::packaged_task<Result()> task(std::move(call));
    std::future<Result> result = task.get_future();
    std::thread([task = std::move(task), phase, unanswered = unanswered_]() mutable {
      task();
      if (phase->exchange(kReturned) == kGivenUp) --*unanswered;
    }).detach();
    // In parts: where this process was stopped, that time is one part, and the host may have
    // been stopped as well.
    constexpr int kParts = 20;
    for (int part = 0; part < kParts; ++part) {
      if (result.wait_for((time + time_to_answer_) / kParts) == std::future_status::ready)
        return result.get();
    }
    if (phase->exchange(kGivenUp) == kReturned) return result.get();
    ++*unanswered_;
    ThrowSilent();
  }

 private:
  [[noreturn]] void ThrowSilent() const {
    throw StoreIsSilent(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        absl::StrCat(
            "the run's store at ", where_, " does not answer: the process that hosts it ",
            "(the launcher, or rank 0) is stopped, or its machine or the network is lost"));
  }

  const std::string where_;
  const milliseconds time_to_answer_;
  const std::shared_ptr<std::atomic<int>> unanswered_ = std::make_shared<std::atomic<int>>(0);
};

// The lambdas hold all by value: a call that was given up outlives this object.
class BoundedStore : public c10d::Store {
 public:
  BoundedStore(StorePointer store, Calls calls)
      : Store(store->getTimeout()), store_(std::move(store)), calls_(std::move(calls)) {}

  using Store::compareSet;
  using Store::set;

  StorePointer clone() override {
    return NewBoundedStore(
        calls_.where(), timeout_, [store = store_] { return store->clone(); },
        calls_.time_to_answer());
  }

  void set(const std::string& key, const Bytes& value) override {
    calls_.ExpectAnswers();
    store_->set(key, value);
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return calls_.Run(milliseconds(0), [store = store_, key, expected, desired] {
      return store->compareSet(key, expected, desired);
    });
  }
  Bytes get(const std::string& key) override {
    return calls_.Run(timeout_, [store = store_, key] { return store->get(key); });
  }
  int64_t add(const std::string& key, int64_t value) override {
    return calls_.Run(milliseconds(0),
                      [store = store_, key, value] { return store->add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return calls_.Run(milliseconds(0), [store = store_, key] { return store->deleteKey(key); });
  }
  bool check(const Keys& keys) override {
    return calls_.Run(milliseconds(0), [store = store_, keys] { return store->check(keys); });
  }
  int64_t getNumKeys() override {
    return calls_.Run(milliseconds(0), [store = store_] { return store->getNumKeys(); });
  }
  void wait(const Keys& keys) override { wait(keys, timeout_); }
  void wait(const Keys& keys, const milliseconds& timeout) override {
    calls_.Run(timeout, [store = store_, keys, timeout] { store->wait(keys, timeout); });
  }
  void setTimeout(const milliseconds& timeout) override {
    timeout_ = timeout;
    store_->setTimeout(timeout);
  }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }
  void append(const std::string& key, const Bytes& value) override {
    calls_.ExpectAnswers();
    store_->append(key, value);
  }
  std::vector<Bytes> multiGet(const Keys& keys) override {
    return calls_.Run(timeout_, [store = store_, keys] { return store->multiGet(keys); });
  }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    calls_.ExpectAnswers();
    store_->multiSet(keys, values);
  }
  Keys listKeys() override {
    return calls_.Run(milliseconds(0), [store = store_] { return store->listKeys(); });
  }

 private:
  const StorePointer store_;
  const Calls calls_;
};

}  // namespace

StorePointer NewBoundedStore(const std::string& where, milliseconds timeout,
                             const std::function<StorePointer()>& connect,
                             milliseconds time_to_answer) {
  const Calls calls(where, time_to_answer);
  return c10::make_intrusive<BoundedStore>(calls.Run(timeout, connect), calls);
}

}  // namespace lockstep::driver
