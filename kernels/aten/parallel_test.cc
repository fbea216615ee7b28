#include "kernels/aten/parallel.h"

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ATen/Parallel.h"
#include "gtest/gtest.h"

namespace lockstep::kernels {
namespace {

TEST(ParallelFor, CallsAllThreads) {
  at::set_num_threads(3);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<int> calls(300, 0);

  ParallelFor(300, 1, [&](int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
    for (int64_t i = begin; i < end; ++i) ++calls[i];
  });

  EXPECT_EQ(threads.size(), 3);
  EXPECT_EQ(calls, std::vector<int>(300, 1));
}

TEST(ParallelFor, PartsHaveTheGrainAtLeast) {
  at::set_num_threads(3);
  std::mutex mutex;
  std::set<std::pair<int64_t, int64_t>> parts;

  ParallelFor(20, 10, [&](int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(mutex);
    parts.insert({begin, end});
  });

  EXPECT_EQ(parts, (std::set<std::pair<int64_t, int64_t>>{{0, 10}, {10, 20}}));
}

TEST(ParallelFor, ThrowsWhatALoopThrows) {
  at::set_num_threads(3);
  EXPECT_THROW(ParallelFor(3, 1,
                           [](int64_t begin, int64_t) {
                             if (begin == 2) throw std::runtime_error("part 2");
                           }),
               std::runtime_error);
}

}  // namespace
}  // namespace lockstep::kernels
