// The order of copies and computation on streams, tried in every way in which two streams that
// compute and two that copy may run.

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "ATen/ops/equal.h"
#include "base/torch/copies/recording_engine.h"
#include "checkpoint/offload/host_offload.h"
#include "checkpoint/testing/fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/saved_variable.h"

namespace lockstep::checkpoint {
namespace {

using base::EventPointer;
using base::RecordingEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::autograd::SavedVariable;

const at::Device kDevice = at::kCPU;

struct CopyOrder : testing::Test {
  std::shared_ptr<RecordingEngine> engine = std::make_shared<RecordingEngine>();

  std::shared_ptr<HostOffload> Offload(int64_t keep_last, int64_t prefetch) {
    return HostOffload::New(
        {.keep_last = keep_last, .prefetch = prefetch, .min_bytes = 1, .engine = engine});
  }
  SavedVariable Save(HostOffload& offload, const at::Tensor& tensor) {
    const ScopedHooks hooks(offload.HooksOfEach());
    return {tensor, false};
  }
  // Unpacks it on a stream that computes, which reads it and frees it.
  void Use(const SavedVariable& saved, int stream) {
    engine->SetCurrent(stream);
    engine->Compute({saved.unpack()}, {});
  }
};

// --- The engine itself ---------------------------------------------------------------------------

TEST_F(CopyOrder, AUseWithoutAWaitIsFoundAndOneWithAWaitIsNot) {
  for (const bool waits : {false, true}) {
    engine = std::make_shared<RecordingEngine>();
    const at::Tensor x = engine->Make({2});
    const EventPointer made = engine->Record(engine->Current(kDevice));
    engine->SetCurrent(1);
    if (waits) engine->MakeWait(engine->Current(kDevice), made);
    engine->Compute({x}, {});

    if (waits) {
      EXPECT_THAT(engine->Problems(), IsEmpty());
    } else {
      EXPECT_THAT(engine->Problems(),
                  ElementsAre("1: compute from #1 may run before 0: compute to #1"));
    }
  }
}

// Memory that one stream allocated and another uses, freed by the host.
TEST_F(CopyOrder, MemoryThatIsFreedWhileAnotherStreamReadsItIsFound) {
  for (const bool is_told : {false, true}) {
    engine = std::make_shared<RecordingEngine>();
    at::Tensor x = engine->Make({2});
    const EventPointer made = engine->Record(engine->Current(kDevice));
    engine->SetCurrent(1);
    engine->MakeWait(engine->Current(kDevice), made);
    if (is_told) engine->AlsoUsedBy(x.storage(), engine->Current(kDevice));
    engine->Compute({x}, {});
    x.reset();

    if (is_told) {
      EXPECT_THAT(engine->Problems(), IsEmpty());
    } else {
      EXPECT_THAT(engine->Problems(), ElementsAre("0: free #1 may run before 1: compute from #1"));
    }
  }
}

TEST_F(CopyOrder, PartsOfOneMemoryAreApart) {
  const at::Tensor x = engine->Make({2, 2});
  const EventPointer made = engine->Record(engine->Current(kDevice));
  engine->SetCurrent(1);
  engine->MakeWait(engine->Current(kDevice), made);
  engine->Compute({}, {x.select(1, 0)});
  engine->SetCurrent(0);
  engine->Compute({x.select(1, 1)}, {});
  EXPECT_THAT(engine->Problems(), IsEmpty());

  engine->Compute({x.select(0, 0)}, {});

  EXPECT_THAT(engine->Problems(),
              ElementsAre("0: compute from #1 may run before 1: compute to #1"));
}

TEST_F(CopyOrder, WorkThatTheHostKnowsToBeFinishedNeedsNoWait) {
  const at::Tensor x = engine->Make({2});
  engine->is_finished = [] { return true; };
  EXPECT_TRUE(engine->Record(engine->Current(kDevice))->IsFinished());
  engine->SetCurrent(1);
  engine->Compute({x}, {});

  EXPECT_THAT(engine->Problems(), IsEmpty());
}

// --- Offloading ----------------------------------------------------------------------------------

TEST_F(CopyOrder, ATensorGoesToTheHostAndBackOnOneStream) {
  const auto offload = Offload(0, 0);
  at::Tensor x = engine->Make({8});
  SavedVariable saved = Save(*offload, x);
  x.reset();

  Use(saved, 0);
  saved.reset_data();

  EXPECT_EQ(offload->stats().restored_bytes, 64);
  EXPECT_THAT(engine->Problems(), IsEmpty());
}

// The memory is the stream's that prefetches, and another frees it.
TEST_F(CopyOrder, APrefetchOnOneStreamIsUsedOnAnother) {
  const auto offload = Offload(0, 1);
  std::vector<SavedVariable> saved;
  for (int i = 0; i < 2; ++i) saved.push_back(Save(*offload, engine->Make({8})));

  Use(saved[1], 0);  // prefetches saved[0]
  Use(saved[0], 1);

  EXPECT_EQ(offload->stats().restored_bytes, 128);
  EXPECT_THAT(engine->Problems(), IsEmpty());
}

// A graph that is dropped, by a thread that computes on another stream than the one that
// prefetched.
TEST_F(CopyOrder, APrefetchThatIsDroppedOnAnotherStreamIsNotWrittenAfterItIsFreed) {
  const auto offload = Offload(0, 1);
  std::vector<SavedVariable> saved;
  for (int i = 0; i < 2; ++i) saved.push_back(Save(*offload, engine->Make({8})));
  Use(saved[1], 0);

  engine->SetCurrent(1);
  saved.clear();

  EXPECT_THAT(engine->Problems(), IsEmpty());
}

TEST_F(CopyOrder, ASharedTensorIsReadyForEachRegion) {
  const auto offload = Offload(0, 0);
  at::Tensor mask = engine->Make({8});
  std::vector<SavedVariable> saved;
  for (int i = 0; i < 2; ++i) saved.push_back(Save(*offload, mask));
  mask.reset();
  Save(*offload, engine->Make({8}));  // a later region: the mask leaves

  Use(saved[0], 0);
  Use(saved[1], 1);

  EXPECT_THAT(engine->Problems(), IsEmpty());
}

TEST_F(CopyOrder, ViewsOfOneStorageComeBackOnTwoStreams) {
  const auto offload = Offload(0, 0);
  at::Tensor fused = engine->Make({4, 6});
  std::vector<SavedVariable> saved;
  for (const at::Tensor& view : fused.chunk(3, 1)) saved.push_back(Save(*offload, view));
  fused.reset();

  engine->SetCurrent(0);
  const at::Tensor q = saved[0].unpack();
  engine->Compute({q}, {});
  engine->SetCurrent(1);
  const at::Tensor k = saved[1].unpack();
  engine->Compute({k}, {});

  EXPECT_EQ(q.storage().data(), k.storage().data());
  EXPECT_THAT(engine->Problems(), IsEmpty());
}

// Two copies to the same elements, on two streams, would have no order.
TEST_F(CopyOrder, ViewsOfTheSameElementsComeBackOnTwoStreams) {
  const auto offload = Offload(0, 0);
  at::Tensor x = engine->Make({2, 3});
  std::vector<SavedVariable> saved;
  saved.push_back(Save(*offload, x));
  saved.push_back(Save(*offload, x.select(1, 1)));
  x.reset();

  Use(saved[0], 0);
  Use(saved[1], 1);

  EXPECT_THAT(engine->Problems(), IsEmpty());
}

// If the device has no memory, a prefetch is delayed. If the device has failed, only the call that
// needs it fails.
TEST_F(CopyOrder, APrefetchWithoutMemoryIsCountedAndTheTensorComesWhenItIsNeeded) {
  const auto offload = Offload(0, 2);
  std::vector<SavedVariable> saved;
  for (int i = 0; i < 3; ++i) saved.push_back(Save(*offload, engine->Make({8})));
  int allocations = 0;
  engine->has_memory = [&] { return allocations++ == 0; };

  Use(saved[2], 0);
  engine->has_memory = [] { return true; };
  Use(saved[1], 0);
  Use(saved[0], 0);

  EXPECT_EQ(offload->stats().failed_prefetches, 2);
  EXPECT_EQ(offload->stats().restored_bytes, 3 * 64);
  EXPECT_THAT(engine->Problems(), IsEmpty());
}

TEST_F(CopyOrder, AFailedDeviceIsAnErrorOfUnpackingAndOfNoDestructor) {
  auto offload = Offload(1, 1);
  std::vector<SavedVariable> saved;
  for (int i = 0; i < 3; ++i) saved.push_back(Save(*offload, engine->Make({8})));

  engine->has_failed = true;

  EXPECT_THAT(MessageOf([&] { saved[0].unpack(); }), HasSubstr("the device has failed"));
  saved.clear();
  EXPECT_EQ(offload->stats().failed_waits, 1);  // the newest was on the device still
  offload.reset();
}

// Programs that save, share, keep, unpack, use and drop tensors on either stream, with an offload
// of any options, where events are finished now and then.
TEST_F(CopyOrder, RandomProgramsHaveNoOpenOrder) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](uint32_t below) { return random() % below; };
    engine = std::make_shared<RecordingEngine>();
    if (draw(2) == 0) engine->is_finished = [&] { return draw(2) == 0; };
    {
      const auto offload = Offload(draw(3), draw(3));
      std::vector<std::pair<SavedVariable, at::Tensor>> saved;  // and what it must be
      std::vector<at::Tensor> kept;
      const auto save = [&](const at::Tensor& x) {
        saved.emplace_back(Save(*offload, x), x.clone());
      };
      for (int i = 0; i < 9 && engine->num_operations() < 60; ++i) {
        engine->SetCurrent(static_cast<int>(draw(2)));
        const uint32_t what = saved.size() < 2 ? 0 : draw(7);
        if (what <= 1) {
          const at::Tensor x = engine->Make({2, 3});
          save(x);
          if (draw(3) == 0) save(x.select(1, 1));
          if (draw(3) == 0) save(x);
          if (draw(3) == 0) kept.push_back(x);
        } else if (what <= 4) {
          const auto& [variable, expected] = saved[draw(static_cast<uint32_t>(saved.size()))];
          const at::Tensor x = variable.unpack();
          EXPECT_TRUE(at::equal(x, expected));
          engine->Compute({x}, {});
        } else if (what == 5) {
          saved.erase(saved.begin() + draw(static_cast<uint32_t>(saved.size())));
        } else if (!kept.empty()) {
          kept.pop_back();
        }
      }
      engine->SetCurrent(static_cast<int>(draw(2)));
    }
    ASSERT_THAT(engine->Problems(), IsEmpty());
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
