#include "checkpoint/offload/host_memory_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;

// Counts allocated bytes, up to a limit.
struct CountedMemory {
  int64_t limit = INT64_MAX;
  int64_t held = 0;
  HostMemory memory() {
    return {.allocate = [this](int64_t bytes) -> void* {
              if (held + bytes > limit) return nullptr;
              held += bytes;
              return PageableMemory().allocate(bytes);
            },
            .release =
                [this](void* data, int64_t bytes) {
                  held -= bytes;
                  PageableMemory().release(data, bytes);
                }};
  }
};

TEST(HostMemoryPool, HeaderExample) {
  HostMemoryPool pool(PageableMemory());
  absl::StatusOr<HostMemoryPool::Block> block = pool.Take(1000);
  ASSERT_TRUE(block.ok());

  std::memset(block->data(), 1, block->bytes());

  EXPECT_EQ(block->bytes(), 1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % 64, 0);
  EXPECT_EQ(pool.usage().bytes, 1024);
}

TEST(HostMemoryPool, MemoryIsReleasedWithTheLastBlock) {
  CountedMemory counted;
  auto pool = std::make_unique<HostMemoryPool>(counted.memory());
  {
    const HostMemoryPool::Block block = *pool->Take(100);
    pool.reset();
    EXPECT_EQ(counted.held, 128);
  }
  EXPECT_EQ(counted.held, 0);
}

TEST(HostMemoryPool, TrafficThatRepeatsAllocatesNothingMore) {
  auto pool = std::make_shared<HostMemoryPool>(PageableMemory());
  const auto step = [&] {
    std::vector<HostMemoryPool::Block> blocks;
    for (const int64_t bytes : {300000, 64, 300000, 5000, 70000})
      blocks.push_back(*pool->Take(bytes));
  };
  step();
  const HostMemoryPool::Usage warm = pool->usage();

  for (int i = 0; i < 100; ++i) step();

  EXPECT_EQ(pool->usage().allocations, warm.allocations);
  EXPECT_EQ(pool->usage().peak_bytes, warm.bytes);
  EXPECT_LE(warm.bytes, 1.02 * (300000 + 64 + 300000 + 5000 + 70000));
}

TEST(HostMemoryPool, BlocksReturnAfterAnException) {
  auto pool = std::make_shared<HostMemoryPool>(PageableMemory());

  try {
    const HostMemoryPool::Block block = *pool->Take(100);
    throw 1;
  } catch (int) {
  }

  EXPECT_EQ(pool->usage().used_bytes, 0);
}

TEST(HostMemoryPool, ABlockThatADeviceUsesIsNotHandedOn) {
  auto pool = std::make_shared<HostMemoryPool>(PageableMemory());
  bool is_finished = false;
  void* first = nullptr;
  {
    HostMemoryPool::Block block = *pool->Take(100);
    first = block.data();
    block.ReturnWhen([&] { return is_finished; });
  }

  const HostMemoryPool::Block other = *pool->Take(100);
  is_finished = true;
  const HostMemoryPool::Block again = *pool->Take(100);

  EXPECT_NE(other.data(), first);
  EXPECT_EQ(again.data(), first);
}

// An event of a device that has failed throws.
TEST(HostMemoryPool, ABlockWhoseDeviceHasFailedIsNeverHandedOnAndEndsNothing) {
  CountedMemory counted;
  auto pool = std::make_shared<HostMemoryPool>(counted.memory());
  {
    HostMemoryPool::Block block = *pool->Take(100);
    block.ReturnWhen([]() -> bool { throw std::runtime_error("unspecified launch failure"); });
  }

  EXPECT_TRUE(pool->Take(100).ok());
  pool.reset();

  EXPECT_EQ(counted.held, 128);  // the device may still write there
}

TEST(HostMemoryPool, LargeFreeMemoryServesSmallRequestsAndJoinsAgain) {
  auto pool = std::make_shared<HostMemoryPool>(PageableMemory());
  { const HostMemoryPool::Block large = *pool->Take(4096); }

  for (int round = 0; round < 3; ++round) {
    std::vector<HostMemoryPool::Block> small;
    for (int i = 0; i < 4; ++i) small.push_back(*pool->Take(1024));
    std::swap(small[1], small[2]);
  }
  const HostMemoryPool::Block large = *pool->Take(4096);

  EXPECT_EQ(pool->usage().allocations, 1);
}

TEST(HostMemoryPool, FreeMemoryOfNoUseIsReleasedBeforeMoreIsAllocated) {
  CountedMemory counted;
  auto pool = std::make_shared<HostMemoryPool>(counted.memory());
  {
    const HostMemoryPool::Block a = *pool->Take(1000 * 64);
    const HostMemoryPool::Block b = *pool->Take(1000 * 64);
  }

  const HostMemoryPool::Block larger = *pool->Take(1500 * 64);

  EXPECT_EQ(counted.held, 1500 * 64);
  EXPECT_EQ(pool->usage().peak_bytes, 2000 * 64);
}

TEST(HostMemoryPool, SmallRequestsShareSlabs) {
  constexpr int64_t kSlab = 1 << 20;
  CountedMemory counted;
  HostMemory memory = counted.memory();
  memory.slab_bytes = kSlab;
  auto pool = std::make_shared<HostMemoryPool>(memory);

  std::vector<HostMemoryPool::Block> blocks;
  for (int i = 0; i < 4000; ++i) blocks.push_back(*pool->Take(4096));
  EXPECT_EQ(pool->usage().allocations, 16);
  EXPECT_EQ(pool->usage().bytes, 16 * kSlab);

  blocks.push_back(*pool->Take(3 * kSlab));
  EXPECT_EQ(pool->usage().bytes, 19 * kSlab) << "a large one has its own";
  blocks.clear();
  pool.reset();
  EXPECT_EQ(counted.held, 0);
}

TEST(HostMemoryPool, IfASlabDoesNotFitARequestGetsJustItsBytes) {
  CountedMemory counted{.limit = 4096};
  HostMemory memory = counted.memory();
  memory.slab_bytes = 1 << 20;
  auto pool = std::make_shared<HostMemoryPool>(memory);

  EXPECT_TRUE(pool->Take(4096).ok());
  EXPECT_EQ(counted.held, 4096);
}

TEST(HostMemoryPool, TheLimitIsKeptAndFreeMemoryMakesRoom) {
  CountedMemory counted;
  auto pool = std::make_shared<HostMemoryPool>(counted.memory(), /*max_bytes=*/10 * 64);
  {
    const HostMemoryPool::Block a = *pool->Take(4 * 64), b = *pool->Take(4 * 64);

    const absl::StatusOr<HostMemoryPool::Block> more = pool->Take(3 * 64);

    EXPECT_EQ(more.status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(more.status().message(),
              "checkpoint: 192 bytes of host memory more would exceed the limit of 640; 512 are "
              "allocated");
  }
  EXPECT_TRUE(pool->Take(9 * 64).ok());
  EXPECT_EQ(pool->usage().peak_bytes, 9 * 64);
}

// Threads take, write, check and return blocks. A device uses some of the blocks for a while.
TEST(HostMemoryPool, ThreadsGetBlocksOfTheirOwn) {
  auto pool = std::make_shared<HostMemoryPool>(PageableMemory());
  std::atomic<int64_t> spoiled = 0;
  const auto work = [&](unsigned char mark) {
    std::mt19937 random(mark);
    for (int i = 0; i < 2000; ++i) {
      HostMemoryPool::Block block = *pool->Take(1 + random() % 3000);
      auto* const bytes = static_cast<unsigned char*>(block.data());
      std::memset(bytes, mark, block.bytes());
      if (random() % 2 == 0) {
        block.ReturnWhen([bytes, mark, size = block.bytes(), &spoiled, asked = 0]() mutable {
          if (++asked < 3) return false;
          spoiled += std::count(bytes, bytes + size, mark) != size;
          return true;
        });
      }
      spoiled += std::count(bytes, bytes + block.bytes(), mark) != block.bytes();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned char mark = 1; mark <= 4; ++mark) threads.emplace_back(work, mark);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(spoiled, 0);
  EXPECT_EQ(pool->usage().used_bytes, 0);
}

TEST(HostMemoryPool, AFullMachineIsAnErrorThatSaysWhatHoldsTheMemory) {
  CountedMemory counted{.limit = 2048};
  auto pool = std::make_shared<HostMemoryPool>(counted.memory());
  const HostMemoryPool::Block block = *pool->Take(2048);

  const absl::StatusOr<HostMemoryPool::Block> more = pool->Take(1);

  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more.status().message(), HasSubstr("2048 bytes hold copies"));
  EXPECT_EQ(pool->Take(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostMemoryPool, TheLastBlockEndsThePoolAndReleasesAll) {
  CountedMemory counted;
  auto pool = std::make_shared<HostMemoryPool>(counted.memory());
  {
    HostMemoryPool::Block block = *pool->Take(100);
    pool.reset();
    EXPECT_EQ(counted.held, 128);
  }

  EXPECT_EQ(counted.held, 0);
}

// Whatever is taken and returned in whatever order: blocks never overlap, keep their content, and
// the pool holds no more than twice what was out at the most.
TEST(HostMemoryPool, RandomTrafficKeepsBlocksApart) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    CountedMemory counted;
    auto pool = std::make_shared<HostMemoryPool>(counted.memory());
    std::map<int, std::pair<HostMemoryPool::Block, unsigned char>> out;
    int64_t most = 0;
    for (int i = 0; i < 500; ++i) {
      if (!out.empty() && random() % 2 == 0) {
        auto victim = std::next(out.begin(), random() % out.size());
        const auto& [block, mark] = victim->second;
        const auto* data = static_cast<const unsigned char*>(block.data());
        for (int64_t byte = 0; byte < block.bytes(); ++byte) ASSERT_EQ(data[byte], mark);
        out.erase(victim);
        continue;
      }
      HostMemoryPool::Block block = *pool->Take(1 + random() % 5000);
      const auto mark = static_cast<unsigned char>(random());
      std::memset(block.data(), mark, block.bytes());
      out[i] = {std::move(block), mark};
      most = std::max(most, pool->usage().used_bytes);
    }
    EXPECT_LE(pool->usage().peak_bytes, 2 * most);
    out.clear();
    EXPECT_EQ(pool->usage().used_bytes, 0);
    EXPECT_EQ(pool->usage().bytes, counted.held);
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
