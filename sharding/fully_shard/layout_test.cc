#include "sharding/fully_shard/layout.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::sharding {
namespace {

TEST(Layout, HeaderExample) {
  const FlatLayout layout = LayOut({6, 1, 100}, /*ranks=*/2);

  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 64, 128}));
  EXPECT_EQ(layout.span, 128);
  EXPECT_EQ(layout.total, 256);
  EXPECT_EQ(layout.PieceOf(1, 0).in_span, 64);
  EXPECT_EQ(layout.PieceOf(1, 0).size, 1);
  EXPECT_EQ(layout.PieceOf(2, 0).size, 0);
  EXPECT_EQ(layout.PieceOf(2, 1).size, 100);
}

// Marks each element of the flat array with the parameter and element that it holds.
void ExpectPiecesCoverEveryElementOnce(const std::vector<int64_t>& sizes, int ranks) {
  const FlatLayout layout = LayOut(sizes, ranks);
  ASSERT_EQ(layout.total, layout.span * ranks);
  ASSERT_EQ(layout.span % kAlignment, 0);
  std::vector<int> uses(static_cast<size_t>(layout.total), 0);
  for (size_t p = 0; p < sizes.size(); ++p) {
    ASSERT_EQ(layout.offsets[p] % kAlignment, 0);
    std::vector<int> seen(static_cast<size_t>(sizes[p]), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const Piece piece = layout.PieceOf(p, rank);
      ASSERT_GE(piece.in_span, 0);
      ASSERT_LE(piece.in_span + piece.size, layout.span);
      for (int64_t i = 0; i < piece.size; ++i) {
        const int64_t flat = rank * layout.span + piece.in_span + i;
        ASSERT_EQ(flat, layout.offsets[p] + piece.in_parameter + i);
        ++uses[static_cast<size_t>(flat)];
        ++seen[static_cast<size_t>(piece.in_parameter + i)];
      }
    }
    for (const int count : seen) ASSERT_EQ(count, 1) << "parameter " << p << " on " << ranks;
  }
  for (const int count : uses) ASSERT_LE(count, 1);
}

TEST(Layout, PiecesCoverEveryElementOnceForAllSmallUnits) {
  const std::vector<int64_t> edges = {0, 1, 63, 64, 65, 130};
  for (int ranks = 1; ranks <= 5; ++ranks) {
    ExpectPiecesCoverEveryElementOnce({}, ranks);
    for (const int64_t a : edges) {
      ExpectPiecesCoverEveryElementOnce({a}, ranks);
      for (const int64_t b : edges) {
        for (const int64_t c : edges) ExpectPiecesCoverEveryElementOnce({a, b, c}, ranks);
      }
    }
  }
}

TEST(Layout, PiecesCoverEveryElementOnceForRandomUnits) {
  const unsigned seed = 20261122;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int64_t> sizes(random() % 12);
    for (int64_t& size : sizes) size = static_cast<int64_t>(random() % 700);
    ExpectPiecesCoverEveryElementOnce(sizes, 1 + static_cast<int>(random() % 9));
  }
}

TEST(Layout, PaddingIsLessThanOneAlignmentForEachParameterAndRank) {
  const std::vector<int64_t> sizes = {1000, 1, 4096, 77};
  for (int ranks = 1; ranks <= 16; ++ranks) {
    int64_t elements = 0;
    for (const int64_t size : sizes) elements += size;
    const int64_t most =
        static_cast<int64_t>(sizes.size() + static_cast<size_t>(ranks)) * kAlignment;
    EXPECT_LT(LayOut(sizes, ranks).total - elements, most) << ranks;
  }
}

}  // namespace
}  // namespace lockstep::sharding
