// Tests how the work of planning grows with the number of samples, in bytes allocated: each try of
// a number of micro-steps allocates its bins again.

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "absl/status/statusor.h"
#include "batching/plan.h"
#include "gtest/gtest.h"

namespace {
int64_t allocated_bytes = 0;  // by this thread alone: planning starts no other
}  // namespace

void* operator new(size_t size) {
  allocated_bytes += static_cast<int64_t>(size);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lockstep::batching {
namespace {

// Returns the bytes that planning `count` samples of `length` tokens allocates.
int64_t WorkFor(int count, int64_t length) {
  const std::vector<Sample> samples(static_cast<size_t>(count),
                                    Sample{.tokens = length, .cost = static_cast<double>(length)});
  const int64_t before = allocated_bytes;
  const absl::StatusOr<Plan> plan = MakePlan(samples, {.seq_len = 100, .ranks = 1});
  const int64_t work = allocated_bytes - before;
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->micro_steps, count / (100 / length));
  return work;
}

// Tokens would allow half the micro-steps, or two thirds, but no two or three samples fit together.
// If planning tried each number in between, four times the samples would be sixteen times the work.
TEST(MakePlan, GrowsWithTheSamplesWhereTheyDoNotFitTogether) {
  for (const int64_t length : {34, 51}) {
    EXPECT_LT(WorkFor(16000, length), 5 * WorkFor(4000, length)) << length;
  }
}

}  // namespace
}  // namespace lockstep::batching
