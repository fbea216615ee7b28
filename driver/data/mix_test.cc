#include "driver/data/mix.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const MixOptions& options) {
  const auto mix = Mix::Make(options);
  return mix.ok() ? "" : std::string(mix.status().message());
}

TEST(Mix, HeaderExample) {
  const absl::StatusOr<Mix> mix = Mix::Make({.sizes = {300, 100}, .weights = {1, 1}});

  ASSERT_TRUE(mix.ok());
  EXPECT_THAT(mix->counts(), ElementsAre(200, 200));
  EXPECT_EQ(mix->size(), 400);
}

TEST(Mix, WithoutWeightsAnEpochHasEverySampleOnce) {
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {1}, {5}, {0, 3}, {3, 0, 2}, {7, 1, 1, 12}, {100, 37, 64}}) {
    const absl::StatusOr<Mix> mix = Mix::Make({.sizes = sizes});
    ASSERT_TRUE(mix.ok());
    std::set<std::pair<int, int64_t>> seen;
    for (int64_t i = 0; i < mix->size(); ++i) {
      const Mix::Located place = mix->Locate(i);
      EXPECT_LT(place.index, sizes[static_cast<size_t>(place.source)]);
      EXPECT_TRUE(seen.insert({place.source, place.index}).second);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), mix->size());
  }
}

TEST(Mix, EveryEpochHasTheSameCountOfEachSource) {
  const absl::StatusOr<Mix> mix =
      Mix::Make({.sizes = {10, 7, 30}, .weights = {0.5, 0.2, 0.3}, .size = 101});
  ASSERT_TRUE(mix.ok());
  EXPECT_THAT(mix->counts(), ElementsAre(51, 20, 30));

  for (const int64_t epoch : {0, 1, 5}) {
    std::vector<int64_t> counts(3);
    for (int64_t i = 0; i < mix->size(); ++i)
      ++counts[static_cast<size_t>(mix->Locate(i, epoch).source)];
    EXPECT_EQ(counts, mix->counts());
  }
}

TEST(Mix, NoSampleComesTwiceBeforeAllOthersOfItsSourceHaveComeOnce) {
  const std::vector<int64_t> sizes = {10, 7, 30};
  const absl::StatusOr<Mix> mix =
      Mix::Make({.sizes = sizes, .weights = {0.5, 0.2, 0.3}, .size = 17});
  ASSERT_TRUE(mix.ok());

  std::vector<std::vector<int>> times = {std::vector<int>(10), std::vector<int>(7),
                                         std::vector<int>(30)};
  for (int64_t i = 0; i < 40 * mix->size(); ++i) {
    const Mix::Located place = mix->Locate(i % mix->size(), i / mix->size());
    std::vector<int>& of_source = times[static_cast<size_t>(place.source)];
    const int before = of_source[static_cast<size_t>(place.index)]++;
    EXPECT_EQ(place.pass, before);
    const auto [fewest, most] = std::minmax_element(of_source.begin(), of_source.end());
    ASSERT_LE(*most, *fewest + 1) << "draw " << i << " of source " << place.source;
  }
}

TEST(Mix, SourcesAlternateEvenly) {
  const absl::StatusOr<Mix> mix = Mix::Make({.sizes = {300, 100}});
  ASSERT_TRUE(mix.ok());

  int64_t of_first = 0;
  for (int64_t i = 0; i < mix->size(); ++i) {
    of_first += mix->Locate(i).source == 0 ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(of_first), 0.75 * static_cast<double>(i + 1), 1);
  }
}

TEST(Mix, SizesBeyondThirtyTwoBitsDoNotOverflow) {
  const int64_t big = int64_t{1} << 52;
  const absl::StatusOr<Mix> mix = Mix::Make({.sizes = {big, big / 2, 3}});
  ASSERT_TRUE(mix.ok());

  for (const int64_t position : {int64_t{0}, big / 3, big, mix->size() - 1}) {
    const Mix::Located place = mix->Locate(position, 1'000);
    EXPECT_GE(place.index, 0);
    EXPECT_LT(place.index, mix->counts()[static_cast<size_t>(place.source)]);
  }
}

TEST(Mix, BadOptionsAreNamed) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("no sources"));
  EXPECT_THAT(ErrorOf({.sizes = {1, 2}, .weights = {1}}), HasSubstr("1 weights for 2 sources"));
  EXPECT_THAT(ErrorOf({.sizes = {1, 2}, .weights = {1, 0}}), HasSubstr("source 2"));
  EXPECT_THAT(ErrorOf({.sizes = {1, 2}, .weights = {1, -1}}), HasSubstr("source 2"));
  EXPECT_THAT(ErrorOf({.sizes = {1, 0}, .weights = {1, 1}}), HasSubstr("source 2 has no samples"));
  EXPECT_THAT(ErrorOf({.sizes = {0, 0}, .size = 5}), HasSubstr("no source has samples"));
  EXPECT_EQ(Mix::Make({.sizes = {0, 0}})->size(), 0);
}

}  // namespace
}  // namespace lockstep::data
