#include "driver/ranks/world.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "driver/ranks/addresses.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace lockstep::driver {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

constexpr std::chrono::seconds kTimeout(45);

// Keys of the test.
constexpr char kRank0IsConnected[] = "test/rank 0 is connected";
constexpr char kRank1GoesOn[] = "test/rank 1 goes on";
constexpr char kRank1IsDone[] = "test/rank 1 is done";

// Holds rank 1 before it connects, until rank 0 is connected.
class HoldingStore : public c10d::Store {
 public:
  HoldingStore(c10::intrusive_ptr<c10d::Store> store, int rank)
      : store_(std::move(store)), rank_(rank) {}

  using Store::set;

  c10::intrusive_ptr<c10d::Store> clone() override { return store_->clone(); }
  void set(const std::string& key, const Bytes& value) override {
    if (rank_ == 0 && absl::EndsWith(key, "/gloo/connected/0"))
      store_->set(kRank0IsConnected, Bytes());
    store_->set(key, value);
  }
  void wait(const Keys& keys, const milliseconds& timeout) override {
    if (rank_ == 1 && absl::EndsWith(keys.front(), "/gloo/0/0")) {  // rank 0's address
      store_->wait({kRank0IsConnected});
      store_->set(kRank1GoesOn, Bytes());
    }
    store_->wait(keys, timeout);
  }
  void wait(const Keys& keys) override { wait(keys, timeout_); }
  Bytes get(const std::string& key) override { return store_->get(key); }
  bool check(const Keys& keys) override { return store_->check(keys); }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
};

// The rank with the higher address makes the connection, and Gloo takes it for connected as soon as
// the other rank listens. If it ended then, the other rank would find the connection closed.
TEST(NewGroup, IsLeftWhenAllRanksAreConnected) {
  const std::optional<tests::Rank> rank = tests::OnRanks(2);
  if (!rank.has_value()) return;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = rank->rank == 0;
  options.numWorkers = 2;
  World world;
  world.environment.rank = rank->rank;
  world.environment.world_size = 2;
  world.store = c10::make_intrusive<HoldingStore>(
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options), rank->rank);
  const std::vector<std::string> addresses = {"127.0.0.2", "127.0.0.1"};
  FixAddresses(world, {addresses[static_cast<size_t>(rank->rank)]}, addresses);

  EXPECT_NO_THROW(NewGroup(world, {0, 1}, kTimeout, {"test", /*watched=*/false}));

  if (rank->rank == 0) {
    EXPECT_TRUE(world.store->check({kRank1GoesOn})) << "rank 0 has left before rank 1 connected";
    world.store->set(kRank0IsConnected, Bytes());
    world.store->wait({kRank1IsDone});
  } else {
    world.store->set(kRank1IsDone, Bytes());
  }
}

}  // namespace
}  // namespace lockstep::driver
