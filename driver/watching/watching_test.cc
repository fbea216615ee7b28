// FLOPs, memory by line and traces without Lua.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "ATen/Functions.h"
#include "c10/core/Allocator.h"
#include "c10/util/Exception.h"
#include "driver/watching/cpu_allocator.h"
#include "driver/watching/flops.h"
#include "driver/watching/memory_lines.h"
#include "driver/watching/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;

// As the program does.
const int kInstalled = [] {
  InstallCpuAllocator();
  return 0;
}();

// The headers' examples.

TEST(FlopCounter, HeaderExample) {
  const FlopCounter counter;

  at::mm(at::ones({2, 3}), at::ones({3, 5}));
  at::bmm(at::ones({4, 2, 3}), at::ones({4, 3, 5}));

  const std::vector<OperatorFlops> operators = counter.ByOperator();
  ASSERT_EQ(operators.size(), 2u);
  EXPECT_EQ(operators[0].name, "aten::bmm");
  EXPECT_EQ(operators[0].flops, 4 * 60);
  EXPECT_EQ(operators[1].flops, 60);
  EXPECT_EQ(operators[1].calls, 1);
  EXPECT_EQ(counter.total(), 5 * 60);
}

TEST(MemoryTracker, HeaderExample) {
  std::string place = "train.lua:1";
  const MemoryTracker tracker(at::kCPU, [&] { return place; });

  const at::Tensor kept = at::empty({1 << 10});
  place = "train.lua:2";
  { const at::Tensor freed = at::empty({1 << 12}); }

  const MemoryByLine report = tracker.Report();
  EXPECT_EQ(report.peak_bytes, (4 << 10) + (4 << 12));
  ASSERT_EQ(report.peak.size(), 2u);
  EXPECT_EQ(report.peak[0].place, "train.lua:2");
  EXPECT_EQ(report.peak[0].bytes, 4 << 12);
  EXPECT_EQ(report.held_bytes, 4 << 10);
  ASSERT_EQ(report.held.size(), 1u);
  EXPECT_EQ(report.held[0].place, "train.lua:1");
  EXPECT_EQ(report.held[0].count, 1);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Trace, HeaderExample) {
  const std::string path = ::testing::TempDir() + "/trace.json";
  Trace trace(path, {.record_shapes = true});

  at::mm(at::ones({2, 3}), at::ones({3, 5}));
  trace.Stop();

  const std::string text = ReadFile(path);
  EXPECT_THAT(text, HasSubstr("\"aten::mm\""));
  EXPECT_THAT(text, HasSubstr("[[2, 3], [3, 5]]"));
}

// Cases that the examples do not show.

TEST(FlopCounter, CountersNestAndEachCountsWhileItLives) {
  const at::Tensor x = at::ones({2, 2});
  FlopCounter outer;
  at::mm(x, x);
  {
    const FlopCounter inner;
    at::mm(x, x);
    EXPECT_EQ(inner.total(), 16);
  }
  at::mm(x, x);
  EXPECT_EQ(outer.total(), 48);
}

TEST(FlopCounter, CallsInsideACountedOperatorAreNotCountedAgain) {
  const FlopCounter counter;

  // Calls _convolution, which calls a kernel's operator.
  at::convolution(at::ones({1, 2, 5, 5}), at::ones({3, 2, 3, 3}), {}, {1, 1}, {0, 0}, {1, 1}, false,
                  {0, 0}, 1);

  ASSERT_EQ(counter.ByOperator().size(), 1u);
  EXPECT_EQ(counter.total(), 2 * 9 * (3 * 2 * 9));
}

// Formulas see arguments before the kernel has checked them.
TEST(FlopCounter, ArgumentsThatTheKernelRefusesCountNothingAndDoNoHarm) {
  const FlopCounter counter;
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor one = at::ones({1});

  EXPECT_THROW(at::mm(at::ones({}), at::ones({})), c10::Error);
  EXPECT_THROW(at::convolution(one, one, {}, {1}, {0}, {1}, false, {0}, 1), c10::Error);
  EXPECT_THROW(
      at::convolution(at::ones({1, 1, 4}), at::ones({1, 1, 2}), {}, {0}, {0}, {1}, false, {0}, 1),
      c10::Error);
  EXPECT_THROW(at::_scaled_dot_product_flash_attention_for_cpu(x, x, x), c10::Error);

  for (const OperatorFlops& op : counter.ByOperator()) EXPECT_LE(op.flops, 64) << op.name;
  at::mm(x, x.t());
  EXPECT_EQ(counter.ByOperator()[0].name, "aten::mm");  // counting goes on
}

// A GPU's attention by its formulas: on the CPU the operators are counted, and then refuse to run.
TEST(FlopCounter, PackedAttentionCountsThePairsOfEachSequence) {
  const at::Tensor ends = at::tensor({0, 3, 7}, at::kInt);
  const at::Tensor packed = at::ones({7, 2, 4});    // 3 + 4 tokens, 2 heads of 4
  const at::Tensor dense = at::ones({2, 3, 5, 4});  // 2 of 3 heads of 5 tokens of 4

  const FlopCounter forward;
  EXPECT_THROW(
      at::_flash_attention_forward(packed, packed, packed, ends, ends, 4, 4, 0.0, true, false),
      c10::Error);
  EXPECT_EQ(forward.total(), (3 * 3 + 4 * 4) * 2 * 2 * (4 + 4));

  const FlopCounter cudnn;
  EXPECT_THROW(at::_cudnn_attention_forward(packed, packed, packed, {}, ends, ends, 4, 4, true),
               c10::Error);
  EXPECT_EQ(cudnn.total(), (3 * 3 + 4 * 4) * 2 * 2 * (4 + 4));

  const FlopCounter backward;
  EXPECT_THROW(at::_flash_attention_backward(packed, packed, packed, packed, packed, packed, ends,
                                             ends, 4, 4, 0.0, true, ends, ends),
               c10::Error);
  const FlopCounter cudnn_backward;
  EXPECT_THROW(at::_cudnn_attention_backward(packed, packed, packed, packed, packed, packed, packed,
                                             packed, packed, ends, ends, 4, 4, 0.0, true),
               c10::Error);
  EXPECT_GT(cudnn_backward.total(), 0);
  EXPECT_EQ(backward.total(), 2 * cudnn_backward.total());  // of both calls

  const FlopCounter unpacked;
  EXPECT_THROW(at::_flash_attention_forward(dense, dense, dense, {}, {}, 3, 3, 0.0, true, false),
               c10::Error);
  EXPECT_EQ(unpacked.total(), 2 * (3 * 3) * 5 * 2 * (4 + 4));  // here 3 tokens of 5 heads

  const FlopCounter fused;
  EXPECT_THROW(at::_scaled_dot_product_flash_attention(dense, dense, dense), c10::Error);
  EXPECT_EQ(fused.total(), 2 * 3 * (5 * 5) * 2 * (4 + 4));
}

TEST(MemoryTracker, TrackersNestAndTheOuterSeesAll) {
  const MemoryTracker outer(at::kCPU, [] { return "outer"; });
  {
    const MemoryTracker inner(at::kCPU, [] { return "inner"; });
    at::empty({1 << 10});
    EXPECT_EQ(inner.Report().peak_bytes, 4 << 10);
  }
  const at::Tensor kept = at::empty({1 << 8});

  EXPECT_EQ(outer.Report().peak_bytes, 4 << 10);
  EXPECT_EQ(outer.Report().held_bytes, 4 << 8);
}

TEST(MemoryTracker, PointsFollowTheMemoryThatIsHeld) {
  const MemoryTracker tracker(
      at::kCPU, [] { return "here"; }, /*keeps_points=*/true);
  const MemoryTracker without(at::kCPU, [] { return "here"; });

  const at::Tensor kept = at::empty({1 << 10});
  at::empty({1 << 12});

  const std::vector<MemoryPoint> points = tracker.Points();
  std::vector<int64_t> bytes;
  for (const MemoryPoint& point : points) bytes.push_back(point.bytes);
  EXPECT_EQ(bytes, (std::vector<int64_t>{4 << 10, (4 << 10) + (4 << 12), 4 << 10}));
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end(),
                             [](const auto& a, const auto& b) { return a.seconds < b.seconds; }));
  EXPECT_TRUE(without.Points().empty());
}

TEST(MemoryTracker, FreesOfOlderMemoryDoNotCount) {
  at::Tensor old = at::empty({1 << 12});
  const MemoryTracker tracker(at::kCPU, [] { return "here"; });

  old.reset();

  const MemoryByLine report = tracker.Report();
  EXPECT_EQ(report.peak_bytes, 0);
  EXPECT_EQ(report.held_bytes, 0);
}

TEST(MemoryTracker, AResetPeakIsThatFromHereOn) {
  std::string place = "before";
  MemoryTracker tracker(at::kCPU, [&] { return place; });
  const at::Tensor kept = at::empty({1 << 8});
  at::empty({1 << 12});
  place = "after";

  tracker.ResetPeak();

  EXPECT_EQ(tracker.Report().peak_bytes, 4 << 8);
  at::empty({1 << 10});
  const MemoryByLine report = tracker.Report();
  EXPECT_EQ(report.peak_bytes, (4 << 8) + (4 << 10));
  ASSERT_EQ(report.peak.size(), 2u);
  EXPECT_EQ(report.peak[0].place, "after");
}

TEST(MemoryTracker, FreesOfOtherThreadsCount) {
  const MemoryTracker outer(at::kCPU, [] { return "outer"; });
  const MemoryTracker tracker(
      at::kCPU, [] { return "here"; }, /*keeps_points=*/true);
  at::Tensor x = at::empty({1 << 12});

  std::thread([&] { x.reset(); }).join();

  EXPECT_EQ(tracker.Report().held_bytes, 0);
  EXPECT_EQ(outer.Report().held_bytes, 0);
  EXPECT_EQ(tracker.Report().peak_bytes, 4 << 12);
  ASSERT_EQ(tracker.Points().size(), 2u);
}

TEST(MemoryTracker, AnAddressThatIsAllocatedAgainWasFreedUnseen) {
  const MemoryTracker tracker(at::kCPU, [] { return "here"; });
  int memory = 0;

  c10::reportMemoryUsageToProfiler(&memory, 64, 64, 0, at::kCPU);
  c10::reportMemoryUsageToProfiler(&memory, 32, 32, 0, at::kCPU);

  const MemoryByLine report = tracker.Report();
  EXPECT_EQ(report.held_bytes, 32);
  EXPECT_EQ(report.peak_bytes, 64);
  ASSERT_EQ(report.held.size(), 1u);
  EXPECT_EQ(report.held[0].count, 1);
}

TEST(MemoryTracker, OtherThreadsMayFreeWhileTrackersComeAndGo) {
  std::vector<std::thread> threads;
  std::atomic<bool> is_over = false;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!is_over) at::empty({1 << 8});
    });

  for (int i = 0; i < 200; ++i) {
    const MemoryTracker outer(at::kCPU, [] { return "outer"; });
    const MemoryTracker inner(at::kCPU, [] { return "inner"; });
    std::vector<at::Tensor> kept = {at::empty({1 << 8}), at::empty({1 << 9})};
    std::thread([&] { kept.clear(); }).join();
    EXPECT_EQ(outer.Report().held_bytes, 0);
    EXPECT_EQ(inner.Report().peak_bytes, (4 << 8) + (4 << 9));
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(MemoryTracker, ThePeakIsThatOfTheHighestMomentNotOfTheLast) {
  std::string place = "high";
  const MemoryTracker tracker(at::kCPU, [&] { return place; });

  at::empty({1 << 12});
  place = "low";
  const at::Tensor kept = at::empty({1 << 10});

  const MemoryByLine report = tracker.Report();
  EXPECT_EQ(report.peak_bytes, 4 << 12);
  ASSERT_EQ(report.peak.size(), 1u);
  EXPECT_EQ(report.peak[0].place, "high");
}

TEST(Trace, ThereIsOneAtATime) {
  const std::string path = ::testing::TempDir() + "/one.json";
  {
    const Trace first(path, {});
    EXPECT_THROW(Trace(path, {}), c10::Error);
  }

  Trace second(path, {});  // the first has ended
  second.Stop();
  second.Stop();
}

// Kineto would treat the tracker as its own state, and wait forever for a lock that does not exist.
TEST(Trace, ATraceAndATrackerRefuseEachOther) {
  const std::string path = ::testing::TempDir() + "/both.json";
  {
    const MemoryTracker tracker(at::kCPU, [] { return "here"; });
    const MemoryTracker inner(at::kCPU, [] { return "here"; });
    EXPECT_THROW(Trace(path, {}), c10::Error);
    at::ones({2});
    EXPECT_EQ(inner.Report().peak_bytes, 8);
  }
  {
    const Trace trace(path, {});  // what was refused left nothing behind
    EXPECT_THROW(MemoryTracker(at::kCPU, [] { return "here"; }), c10::Error);
    at::ones({2});
  }

  EXPECT_THAT(ReadFile(path), HasSubstr("aten::ones"));
  const MemoryTracker tracker(at::kCPU, [] { return "here"; });
}

TEST(Trace, AFileThatCannotBeWrittenIsNamed) {
  Trace trace("/nowhere/trace.json", {});

  try {
    trace.Stop();
    FAIL() << "wrote into a folder that is not there";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "cannot write the trace /nowhere/trace.json: No such file or directory");
  }
}

TEST(Trace, TheDestructorWritesARunningTrace) {
  const std::string path = ::testing::TempDir() + "/unstopped.json";

  {
    Trace trace(path, {});
    trace.BeginStep(7);
    at::ones({2});
  }

  EXPECT_THAT(ReadFile(path), HasSubstr("ProfilerStep#7"));
}

}  // namespace
}  // namespace lockstep::driver
