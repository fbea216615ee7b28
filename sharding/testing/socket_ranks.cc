#include "sharding/testing/socket_ranks.h"

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace lockstep::sharding {
namespace {

// Lets the ranks of one process exchange their addresses.
class Board {
 public:
  explicit Board(size_t size) : promises_(size) {
    for (auto& promise : promises_) texts_.push_back(promise.get_future().share());
  }

  SocketCollective::Exchange ForRank(size_t rank) {
    return [this, rank](
               const std::string& own,
               const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
      promises_[rank].set_value(own);
      std::vector<std::string> asked;
      for (const int position : positions)
        asked.push_back(texts_[static_cast<size_t>(position)].get());
      return asked;
    };
  }

 private:
  std::vector<std::promise<std::string>> promises_;
  std::vector<std::shared_future<std::string>> texts_;
};

}  // namespace

void RunSocketRanks(int size,
                    const std::function<void(int position, CollectivePointer collective)>& body,
                    const std::vector<absl::Duration>& timeouts, const std::vector<int>& ranks,
                    const std::string& address, int most_at_once) {
  Board board(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto place = static_cast<size_t>(rank);
      const absl::Duration timeout = timeouts[std::min(place, timeouts.size() - 1)];
      absl::StatusOr<CollectivePointer> collective = SocketCollective::Connect(
          rank, size, address, board.ForRank(place), timeout, ranks, most_at_once);
      ASSERT_TRUE(collective.ok()) << collective.status();
      body(rank, *std::move(collective));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::sharding
