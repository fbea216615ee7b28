#include "checkpoint/host_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace lockstep::checkpoint {
namespace {

// Counts what is allocated, up to a limit.
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

TEST(HostPool, HeaderExample) {
  auto pool = std::make_shared<HostPool>(PageableMemory());
  absl::StatusOr<HostPool::Block> block = pool->Take(1000);
  ASSERT_TRUE(block.ok());

  std::memset(block->data(), 1, block->bytes());

  EXPECT_EQ(block->bytes(), 1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % 64, 0);
  EXPECT_EQ(pool->usage().bytes, 1024);
}

TEST(HostPool, TrafficThatRepeatsAllocatesNothingMore) {
  auto pool = std::make_shared<HostPool>(PageableMemory());
  const auto step = [&] {
    std::vector<HostPool::Block> blocks;
    for (const int64_t bytes : {300000, 64, 300000, 5000, 70000})
      blocks.push_back(*pool->Take(bytes));
  };
  step();
  const HostPool::Usage warm = pool->usage();

  for (int i = 0; i < 100; ++i) step();

  EXPECT_EQ(pool->usage().allocations, warm.allocations);
  EXPECT_EQ(pool->usage().peak_bytes, warm.bytes);
  EXPECT_LE(warm.bytes, 1.02 * (300000 + 64 + 300000 + 5000 + 70000));
}

TEST(HostPool, BlocksReturnWhoeverThrows) {
  auto pool = std::make_shared<HostPool>(PageableMemory());

  try {
    const HostPool::Block block = *pool->Take(100);
    throw 1;
  } catch (int) {
  }

  EXPECT_EQ(pool->usage().used_bytes, 0);
}

TEST(HostPool, ABlockThatADeviceUsesIsNotHandedOn) {
  auto pool = std::make_shared<HostPool>(PageableMemory());
  bool is_finished = false;
  void* first = nullptr;
  {
    HostPool::Block block = *pool->Take(100);
    first = block.data();
    block.ReturnWhen([&] { return is_finished; });
  }

  const HostPool::Block other = *pool->Take(100);
  is_finished = true;
  const HostPool::Block again = *pool->Take(100);

  EXPECT_NE(other.data(), first);
  EXPECT_EQ(again.data(), first);
}

TEST(HostPool, LargeFreeMemoryServesSmallRequestsAndJoinsAgain) {
  auto pool = std::make_shared<HostPool>(PageableMemory());
  { const HostPool::Block large = *pool->Take(4096); }

  for (int round = 0; round < 3; ++round) {
    std::vector<HostPool::Block> small;
    for (int i = 0; i < 4; ++i) small.push_back(*pool->Take(1024));
    std::swap(small[1], small[2]);
  }
  const HostPool::Block large = *pool->Take(4096);

  EXPECT_EQ(pool->usage().allocations, 1);
}

TEST(HostPool, FreeMemoryOfNoUseIsReleasedBeforeMoreIsAllocated) {
  CountedMemory counted;
  auto pool = std::make_shared<HostPool>(counted.memory());
  {
    const HostPool::Block a = *pool->Take(1000 * 64);
    const HostPool::Block b = *pool->Take(1000 * 64);
  }

  const HostPool::Block larger = *pool->Take(1500 * 64);

  EXPECT_EQ(counted.held, 1500 * 64);
  EXPECT_EQ(pool->usage().peak_bytes, 2000 * 64);
}

TEST(HostPool, AFullMachineIsAnErrorThatSaysWhatHoldsTheMemory) {
  CountedMemory counted{.limit = 2048};
  auto pool = std::make_shared<HostPool>(counted.memory());
  const HostPool::Block block = *pool->Take(2048);

  const absl::StatusOr<HostPool::Block> more = pool->Take(1);

  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(more.status().message().find("2048 bytes hold copies"), std::string::npos);
  EXPECT_EQ(pool->Take(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostPool, TheLastBlockEndsThePoolAndReleasesAll) {
  CountedMemory counted;
  auto pool = std::make_shared<HostPool>(counted.memory());
  {
    HostPool::Block block = *pool->Take(100);
    pool.reset();
    EXPECT_EQ(counted.held, 128);
  }

  EXPECT_EQ(counted.held, 0);
}

// Whatever is taken and returned in whatever order: blocks never overlap, keep their content, and
// the pool holds no more than twice what was out at the most.
TEST(HostPool, RandomTrafficKeepsBlocksApart) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    CountedMemory counted;
    auto pool = std::make_shared<HostPool>(counted.memory());
    std::map<int, std::pair<HostPool::Block, unsigned char>> out;
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
      HostPool::Block block = *pool->Take(1 + random() % 5000);
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
