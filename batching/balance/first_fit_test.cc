#include "batching/balance/first_fit.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

// Looks at one bin after the other.
size_t PlaceNaively(std::vector<int64_t>& rooms, int64_t size, int64_t capacity) {
  size_t bin = 0;
  while (bin < rooms.size() && rooms[bin] < size) ++bin;
  if (bin == rooms.size()) rooms.push_back(capacity);
  rooms[bin] -= size;
  return bin;
}

TEST(FirstFit, HeaderExample) {
  FirstFit first_fit(/*capacity=*/10);
  EXPECT_EQ(first_fit.Place(6), 0u);
  EXPECT_EQ(first_fit.Place(5), 1u);
  EXPECT_EQ(first_fit.Place(4), 0u);
}

TEST(FirstFit, AnItemThatFillsABinLeavesNoRoom) {
  FirstFit first_fit(3);
  for (size_t bin = 0; bin < 9; ++bin) EXPECT_EQ(first_fit.Place(3), bin);
}

TEST(FirstFit, PlacesAsLookingAtEveryBinDoes) {
  std::mt19937 random(20261121);
  for (int c = 0; c < 1000; ++c) {
    const int64_t capacity = 1 + static_cast<int64_t>(random() % 50);
    FirstFit first_fit(capacity);
    std::vector<int64_t> rooms;
    for (unsigned i = random() % 100; i > 0; --i) {
      const int64_t size = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(capacity));
      ASSERT_EQ(first_fit.Place(size), PlaceNaively(rooms, size, capacity)) << "case " << c;
    }
  }
}

}  // namespace
}  // namespace lockstep::batching
