#include "mimo/draw/draw.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mimo/testing/random_topology.h"

namespace lockstep::mimo {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Topology Make(int64_t world_size, std::vector<Module> modules) {
  absl::StatusOr<Topology> topology = Topology::Make(world_size, modules);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(DrawText, HeaderExample) {
  const Topology topology =
      Make(4, {{.name = "vision", .dp = 3}, {.name = "language", .first_rank = 3}});

  EXPECT_EQ(DrawText(topology, {.micro_batch_size = 6}),
            "world of 4 ranks\n"
            "\n"
            "vision  dp 3, tp 1, cp 1, pp 1, ranks 0-2\n"
            "  replica  0       1       2\n"
            "  samples  [0, 2)  [2, 4)  [4, 6)\n"
            "  ranks    0       1       2\n"
            "\n"
            "language  dp 1, tp 1, cp 1, pp 1, rank 3\n"
            "  replica  0\n"
            "  samples  [0, 6)\n"
            "  ranks    3\n"
            "\n"
            "vision -> language\n"
            "  replica 0  from 0-2\n");
}

TEST(DrawText, StagesAreRowsAndCellsListRanks) {
  const Topology topology =
      Make(8, {{.name = "language", .dp = 2, .tp = 2, .pp = 2, .ranks = {0, 1, 2, 4, 3, 7, 5, 6}}});

  EXPECT_EQ(DrawText(topology),
            "world of 8 ranks\n"
            "\n"
            "language  dp 2, tp 2, cp 1, pp 2, ranks 0-7\n"
            "  replica  0     1\n"
            "  stage 0  0-1   2, 4\n"
            "  stage 1  3, 7  5-6\n");
}

TEST(DrawText, WithoutSamplesEdgesAreThoseOfAMicroBatchThatSuitsBoth) {
  const Topology topology =
      Make(5, {{.name = "vision", .dp = 2}, {.name = "language", .dp = 3, .first_rank = 2}});

  EXPECT_THAT(DrawText(topology), HasSubstr("vision -> language\n"
                                            "  replica 0  from 0\n"
                                            "  replica 1  from 0-1\n"
                                            "  replica 2  from 1\n"));
}

TEST(DrawText, LargeTopologiesAreCut) {
  const Topology topology =
      Make(16'384, {{.name = "vision", .dp = 8192},
                    {.name = "language", .dp = 4096, .tp = 2, .first_rank = 8192}});

  const std::string text = DrawText(topology, {.max_replicas = 4});

  EXPECT_THAT(text, HasSubstr("  replica  0  1  2  3  and 8188 more\n"));
  EXPECT_THAT(text, HasSubstr("  replica 3  from 6-7\n"));
  EXPECT_LT(text.size(), 1'000u);
}

TEST(DrawText, ScatteredRanksAreCut) {
  std::vector<int32_t> even;
  std::vector<int32_t> odd;
  for (int32_t i = 0; i < 10; ++i) {
    even.push_back(2 * i);
    odd.push_back(2 * i + 1);
  }
  const Topology topology = Make(20, {{.name = "vision", .tp = 10, .ranks = even},
                                      {.name = "language", .tp = 10, .ranks = odd}});

  EXPECT_THAT(DrawText(topology, {.max_ranks = 2}), HasSubstr("  ranks    0, 2 and 8 more\n"));
}

TEST(DrawSvg, HasACellForEachReplicaAndStageAndALineForEachLink) {
  const Topology topology = Make(
      7, {{.name = "vision", .dp = 3}, {.name = "language", .dp = 2, .pp = 2, .first_rank = 3}});

  const std::string svg = DrawSvg(topology, {.micro_batch_size = 6});

  EXPECT_EQ(Count(svg, "fill=\"#e8eef7\""), 3 + 2 * 2);
  EXPECT_EQ(Count(svg, "fill=\"#fdf0d5\""), 3 + 2);
  EXPECT_EQ(Count(svg, "<line "), 4);
  EXPECT_THAT(svg, HasSubstr(">stage 1</text>"));
  EXPECT_THAT(svg, HasSubstr(">[2, 4)</text>"));
}

TEST(DrawSvg, TheDrawingInTheDocsIsFresh) {
  const Topology topology =
      Make(12, {{.name = "vision", .dp = 3},
                {.name = "audio", .first_rank = 3},
                {.name = "language", .dp = 2, .tp = 2, .pp = 2, .first_rank = 4}});
  std::ifstream file("docs/pictures/mimo_topology.svg");
  const std::string committed((std::istreambuf_iterator<char>(file)), {});

  EXPECT_EQ(DrawSvg(topology, {.micro_batch_size = 6}), committed);
}

TEST(DrawSvg, NamesAreEscaped) {
  const Topology topology =
      Make(2, {{.name = "a<b>&\"c\""}, {.name = "language", .first_rank = 1}});

  const std::string svg = DrawSvg(topology);

  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;c&quot;"));
  EXPECT_THAT(svg, Not(HasSubstr("a<b>")));
}

TEST(Draw, AnyTopologyCanBeDrawn) {
  std::mt19937 random(9);
  for (int c = 0; c < 1'000; ++c) {
    const Topology topology = RandomTopology(random);
    const DrawOptions options = {.micro_batch_size = Draw(random, 0, 5),
                                 .max_replicas = Draw(random, 0, 3),
                                 .max_ranks = Draw(random, 0, 3)};

    const std::string text = DrawText(topology, options);
    const std::string svg = DrawSvg(topology, options);

    ASSERT_EQ(Count(text, " -> "), static_cast<int>(topology.edges().size()));
    ASSERT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
    ASSERT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for (const Module& module : topology.modules()) ASSERT_THAT(text, HasSubstr(module.name));
  }
}

}  // namespace
}  // namespace lockstep::mimo
