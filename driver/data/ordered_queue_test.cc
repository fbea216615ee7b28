#include "driver/data/ordered_queue.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using Queue = OrderedQueue<std::unique_ptr<int>, std::string>;

constexpr double kPatienceS = 3600;

// Threads that turn each number into text; a job below 0 ends its thread.
class Threads {
 public:
  Threads(Queue& queue, int count) : queue_(queue) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([&queue, i] {
        while (auto taken = queue.Take()) {
          if (*taken->job < 0) return queue.Fail("thread " + std::to_string(i) + " has ended");
          // Some take longer than others.
          volatile int work = 0;
          for (int k = 0; k < *taken->job % 7 * 1000; ++k) work = work + 1;
          queue.Put(taken->number, std::to_string(*taken->job));
        }
      });
    }
  }
  ~Threads() {
    queue_.Close();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  Queue& queue_;
  std::vector<std::thread> threads_;
};

TEST(OrderedQueue, AResultThatDoesNotComeInTimeMayComeLater) {
  Queue queue;
  queue.Submit(std::make_unique<int>(5));

  EXPECT_EQ(queue.Next(0).status().code(), absl::StatusCode::kDeadlineExceeded);

  auto taken = queue.Take();
  queue.Put(taken->number, "5");
  EXPECT_EQ(*queue.Next(0), "5");
  EXPECT_EQ(queue.Next(0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(OrderedQueue, ResultsComeInTheOrderOfTheJobs) {
  for (const int num_threads : {1, 2, 5}) {
    for (const int ahead : {1, 3, 64}) {
      Queue queue;
      Threads threads(queue, num_threads);
      int submitted = 0;
      for (int i = 0; i < 2000; ++i) {
        while (submitted < 2000 && submitted < i + ahead)
          queue.Submit(std::make_unique<int>(submitted++));
        const absl::StatusOr<std::string> result = queue.Next(kPatienceS);
        ASSERT_TRUE(result.ok());
        ASSERT_EQ(*result, std::to_string(i)) << num_threads << " threads, " << ahead << " ahead";
      }
    }
  }
}

TEST(OrderedQueue, WithoutAJobThereIsNoNext) {
  Queue queue;
  EXPECT_THAT(std::string(queue.Next(kPatienceS).status().message()), HasSubstr("no job"));
}

TEST(OrderedQueue, AThreadThatEndsIsAnErrorOnceItsTurnHasCome) {
  Queue queue;
  Threads threads(queue, 1);
  for (const int job : {1, 2, -1, 4}) queue.Submit(std::make_unique<int>(job));

  EXPECT_EQ(*queue.Next(kPatienceS), "1");
  EXPECT_EQ(*queue.Next(kPatienceS), "2");
  EXPECT_EQ(queue.Next(kPatienceS).status().message(), "thread 0 has ended");
  EXPECT_EQ(queue.Next(kPatienceS).status().message(), "thread 0 has ended");
}

TEST(OrderedQueue, ClosingWakesThreadsAndDropsWhatWaits) {
  for (int i = 0; i < 200; ++i) {
    Queue queue;
    Threads threads(queue, 3);
    for (int job = 0; job < i % 5; ++job) queue.Submit(std::make_unique<int>(job));
    // The destructor of Threads closes the queue, and joins.
  }
}

}  // namespace
}  // namespace lockstep::data
