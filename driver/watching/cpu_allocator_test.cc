#include "driver/watching/cpu_allocator.h"

#include <malloc.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/alignment.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cpu_memory.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;

const int kInstalled = [] {
  InstallCpuAllocator();
  return 0;
}();

// Destroyed after main returns.
std::vector<at::Tensor>& UntilTheEnd() {
  static std::vector<at::Tensor> tensors;
  return tensors;
}

c10::Allocator& Installed() { return *c10::GetCPUAllocator(); }

// Sizes on both sides of what the allocator serves itself.
std::vector<size_t> Sizes() {
  std::vector<size_t> sizes;
  for (size_t bytes = 1; bytes <= 300; ++bytes) sizes.push_back(bytes);
  for (const size_t bytes : {kMaxUnreportedBytes, size_t{1} << 20}) {
    sizes.insert(sizes.end(), {bytes - 1, bytes, bytes + 1});
  }
  return sizes;
}

TEST(CpuAllocator, HeaderExample) {
  EXPECT_NE(&Installed(), c10::GetDefaultCPUAllocator());
  UntilTheEnd().push_back(at::ones({4}));

  const tests::Memory memory = tests::MemoryOf([] {
    const at::Tensor unseen = at::empty({4});
    const ReportedAllocations reported;
    const at::Tensor seen = at::empty({8});
  });

  EXPECT_EQ(memory.peak, 32);
}

TEST(CpuAllocator, BlocksAreAlignedWritableAndApart) {
  std::vector<std::pair<c10::DataPtr, size_t>> blocks;

  for (const size_t bytes : Sizes()) {
    blocks.emplace_back(Installed().allocate(bytes), bytes);
    std::memset(blocks.back().first.get(), static_cast<int>(blocks.size() % 251), bytes);
  }

  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto* const address = static_cast<const unsigned char*>(blocks[i].first.get());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % c10::gAlignment, 0u) << blocks[i].second;
    EXPECT_EQ(blocks[i].first.device(), c10::Device(c10::kCPU));
    const std::vector<unsigned char> expected(blocks[i].second, (i + 1) % 251);
    EXPECT_EQ(std::memcmp(address, expected.data(), expected.size()), 0) << blocks[i].second;
  }
}

TEST(CpuAllocator, NoBytesHaveNoAddress) {
  EXPECT_EQ(Installed().allocate(0).get(), nullptr);
  EXPECT_EQ(at::empty({0}).data_ptr(), nullptr);
}

TEST(CpuAllocator, WithoutMemoryTheErrorIsLibtorchs) {
  try {
    Installed().allocate(size_t{1} << 62);
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("DefaultCPUAllocator: can't allocate memory"));
  }
}

TEST(CpuAllocator, RawBlocksOfAllSizesAreFreed) {
  for (const size_t bytes : Sizes()) {
    void* const address = Installed().raw_allocate(bytes);
    std::memset(address, 1, bytes);
    Installed().raw_deallocate(address);
  }
}

TEST(CpuAllocator, ReportsBeginAndEndWhileBlocksLive) {
  for (const int64_t numel : {int64_t{4}, int64_t{1} << 20}) {
    at::Tensor before = at::empty({numel});
    at::Tensor inside;
    const tests::Memory memory = tests::MemoryOf([&] {
      const ReportedAllocations outer;
      { const ReportedAllocations inner; }
      inside = at::empty({numel});
      before.reset();
    });

    EXPECT_EQ(memory.peak, 4 * numel);
    inside.reset();
  }
}

// Meanwhile other threads begin and end to report.
TEST(CpuAllocator, ThreadsFreeEachOthersBlocks) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  std::vector<std::vector<at::Tensor>> made(kThreads);
  const auto on_all = [](const auto& run) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back(run, i);
    for (std::thread& thread : threads) thread.join();
  };

  on_all([&](int i) {
    for (int round = 0; round < kRounds; ++round) made[i].push_back(at::full({1 + round}, i));
  });
  on_all([&](int i) {
    std::vector<at::Tensor>& others = made[(i + 1) % kThreads];
    for (int round = 0; round < kRounds; ++round) {
      const ReportedAllocations reported;
      EXPECT_EQ(others[round].sum().item<float>(), (round + 1) * ((i + 1) % kThreads));
      others[round].reset();
    }
  });
}

// The allocator frees both its own blocks and libtorch's by std::free.
TEST(CpuAllocator, LibtorchsBlocksAreTheCLibrarys) {
  constexpr size_t kBytes = 64 << 10;
  std::vector<c10::DataPtr> blocks;
  const size_t before = mallinfo2().uordblks;

  for (int i = 0; i < 100; ++i) blocks.push_back(c10::GetDefaultCPUAllocator()->allocate(kBytes));

  EXPECT_GE(mallinfo2().uordblks, before + 100 * kBytes);
}

}  // namespace
}  // namespace lockstep::driver
