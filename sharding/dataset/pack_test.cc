#include "sharding/dataset/pack.h"

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Packed {
  std::vector<Chunk> chunks;
  int64_t dropped = 0;
};

Packed Pack(const std::vector<int64_t>& lengths, const PackOptions& options) {
  Packer packer(options);
  Packed packed;
  for (const int64_t length : lengths) {
    for (Chunk& chunk : packer.Add(length)) packed.chunks.push_back(std::move(chunk));
  }
  if (std::optional<Chunk> last = packer.Finish()) packed.chunks.push_back(*std::move(last));
  packed.dropped = packer.dropped_tokens();
  return packed;
}

TEST(Packer, HeaderExample) {
  Packer packer({.seq_len = 8});
  EXPECT_THAT(packer.Add(5), IsEmpty());
  const std::vector<Chunk> chunks = packer.Add(7);
  EXPECT_THAT(chunks, ElementsAre(ElementsAre(SamplePart{0, 0, 5}, SamplePart{1, 0, 3})));
  EXPECT_EQ(packer.waiting_tokens(), 4);
}

TEST(Packer, ALongSampleFillsSeveralChunks) {
  const Packed packed = Pack({10}, {.seq_len = 4});
  EXPECT_THAT(packed.chunks,
              ElementsAre(ElementsAre(SamplePart{0, 0, 4}), ElementsAre(SamplePart{0, 4, 8})));
  EXPECT_EQ(packed.dropped, 2);
}

TEST(Packer, TheLastChunkMayStayShort) {
  const Packed packed = Pack({3, 3}, {.seq_len = 4, .drop_last = false});
  EXPECT_THAT(packed.chunks, ElementsAre(ElementsAre(SamplePart{0, 0, 3}, SamplePart{1, 0, 1}),
                                         ElementsAre(SamplePart{1, 1, 3})));
  EXPECT_EQ(packed.dropped, 0);
}

TEST(Packer, SamplesMayBeCarriedOverWhole) {
  const Packed packed = Pack({3, 2, 4, 1}, {.seq_len = 4, .split = false, .drop_last = false});
  EXPECT_THAT(packed.chunks,
              ElementsAre(ElementsAre(SamplePart{0, 0, 3}), ElementsAre(SamplePart{1, 0, 2}),
                          ElementsAre(SamplePart{2, 0, 4}), ElementsAre(SamplePart{3, 0, 1})));
}

TEST(Packer, TokensBeyondSeqLenAreDroppedAndCounted) {
  const Packed packed = Pack({1, 6}, {.seq_len = 4, .split = false, .drop_last = false});
  EXPECT_THAT(packed.chunks,
              ElementsAre(ElementsAre(SamplePart{0, 0, 1}), ElementsAre(SamplePart{1, 0, 4})));
  EXPECT_EQ(packed.dropped, 2);
}

TEST(Packer, EmptySamplesAndNoSamplesLeaveNoTrace) {
  EXPECT_THAT(Pack({}, {.seq_len = 4, .drop_last = false}).chunks, IsEmpty());
  const Packed packed = Pack({0, 2, 0}, {.seq_len = 4, .drop_last = false});
  EXPECT_THAT(packed.chunks, ElementsAre(ElementsAre(SamplePart{1, 0, 2})));
}

TEST(Packer, EveryTokenIsInOneChunkInOrderOrCounted) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const PackOptions options = {.seq_len = 1 + static_cast<int64_t>(random() % 9),
                                 .split = random() % 2 == 0,
                                 .drop_last = random() % 2 == 0};
    std::vector<int64_t> lengths(random() % 12);
    int64_t tokens = 0;
    for (int64_t& length : lengths) tokens += length = static_cast<int64_t>(random() % 14);

    const Packed packed = Pack(lengths, options);

    int64_t packed_tokens = 0;
    SamplePart last;
    for (size_t i = 0; i < packed.chunks.size(); ++i) {
      int64_t length = 0;
      for (const SamplePart& part : packed.chunks[i]) {
        const bool goes_on = part.sample == last.sample && part.begin == last.end;
        EXPECT_TRUE(goes_on || (part.sample > last.sample && part.begin == 0));
        EXPECT_LT(part.begin, part.end);
        length += part.end - part.begin;
        last = part;
      }
      if (options.split && (options.drop_last || i + 1 < packed.chunks.size())) {
        EXPECT_EQ(length, options.seq_len);
      }
      EXPECT_LE(length, options.seq_len);
      packed_tokens += length;
    }
    EXPECT_EQ(packed_tokens + packed.dropped, tokens);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lockstep::sharding
