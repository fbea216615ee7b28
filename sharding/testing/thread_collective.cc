#include "sharding/testing/thread_collective.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::sharding {
namespace {

struct Round {
  std::vector<std::string> bytes;
  int arrived = 0;
};

// The state that the threads share. Guarded by `mutex`.
struct Meeting {
  int size = 0;
  std::chrono::duration<double> timeout{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int64_t, Round> rounds;
};

class ThreadPending : public Collective::Pending {
 public:
  ThreadPending(Meeting& meeting, int64_t round) : meeting_(meeting), round_(round) {}

  absl::StatusOr<std::vector<std::string>> Wait() override {
    std::unique_lock<std::mutex> lock(meeting_.mutex);
    Round& round = meeting_.rounds[round_];
    const bool complete = meeting_.changed.wait_for(lock, meeting_.timeout,
                                                    [&] { return round.arrived == meeting_.size; });
    if (!complete) {
      return absl::DeadlineExceededError(
          absl::StrCat("only ", round.arrived, " of ", meeting_.size, " ranks came"));
    }
    return round.bytes;
  }

 private:
  Meeting& meeting_;
  int64_t round_;
};

class ThreadCollective : public Collective {
 public:
  ThreadCollective(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size; }

  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    const std::lock_guard<std::mutex> lock(meeting_.mutex);
    Round& round = meeting_.rounds[next_round_];
    round.bytes.resize(static_cast<size_t>(meeting_.size));
    round.bytes[static_cast<size_t>(rank_)] = bytes;
    ++round.arrived;
    meeting_.changed.notify_all();
    return std::make_unique<ThreadPending>(meeting_, next_round_++);
  }

 private:
  Meeting& meeting_;
  const int rank_;
  int64_t next_round_ = 0;
};

}  // namespace

void RunAsThreads(int size, const std::function<void(Collective&)>& body, double timeout_s) {
  Meeting meeting;
  meeting.size = size;
  meeting.timeout = std::chrono::duration<double>(timeout_s);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCollective collective(meeting, rank);
      body(collective);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::sharding
