#include "tiled_mlp/tiles.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace lockstep::tiled_mlp {
namespace {

TEST(BalancedTiles, CoverAllRowsInOrderAndDifferByOneAtMost) {
  for (int64_t tokens = 1; tokens <= 60; ++tokens) {
    for (int64_t num_tiles = 1; num_tiles <= 70; ++num_tiles) {
      const std::vector<TileRange> tiles = BalancedTiles(tokens, num_tiles);

      ASSERT_EQ(static_cast<int64_t>(tiles.size()), std::min(tokens, num_tiles));
      int64_t next = 0, least = tokens, most = 0;
      for (const TileRange& tile : tiles) {
        ASSERT_EQ(tile.begin, next);
        next = tile.end;
        least = std::min(least, tile.size());
        most = std::max(most, tile.size());
      }
      ASSERT_EQ(next, tokens);
      ASSERT_LE(most - least, 1);
      ASSERT_GE(least, 1);
    }
  }
}

TEST(BalancedTiles, NoTokensAreOneEmptyTile) {
  const std::vector<TileRange> tiles = BalancedTiles(0, 5);

  ASSERT_EQ(tiles.size(), 1u);
  EXPECT_EQ(tiles[0].size(), 0);
}

TEST(DefaultTileTokens, IsTwiceTheHiddenSizeInMultiplesOf128) {
  EXPECT_EQ(DefaultTileTokens(4096, 14336), 8192);
  EXPECT_EQ(DefaultTileTokens(2880, 2880), 5760);
  EXPECT_EQ(DefaultTileTokens(1000, 4000), 2048);
  EXPECT_EQ(DefaultTileTokens(64, 256), 1024);
}

TEST(DefaultTileTokens, NeverLetsATileHold2To31Elements) {
  EXPECT_LT(DefaultTileTokens(20000, 400000) * 400000, int64_t{1} << 31);
  EXPECT_EQ(DefaultTileTokens(1, int64_t{1} << 40), 1);
}

TEST(PlanTiles, HeaderExample) {
  const TilePlan plan = *PlanTiles({.tokens = 100'000, .hidden = 4096, .widest = 14336}, {});

  EXPECT_EQ(plan.tile_tokens, 8192);
  ASSERT_EQ(plan.tiles.size(), 13u);
  EXPECT_EQ(plan.tiles[0].size(), 7693);
  EXPECT_EQ(plan.tiles[12].size(), 7692);
}

TEST(PlanTiles, RunsUntiledUpToBreakEven) {
  // 8192 + 0.75 * 4096 * 4 / 3
  EXPECT_TRUE(PlanTiles({.tokens = 12288, .hidden = 4096}, {.tile_tokens = 8192})->tiles.empty());
  EXPECT_EQ(PlanTiles({.tokens = 12289, .hidden = 4096}, {.tile_tokens = 8192})->tiles.size(), 2u);
  EXPECT_EQ(PlanTiles({.tokens = 12000, .hidden = 4096, .gradients_held = 1}, {})->tiles.size(),
            2u);
}

TEST(PlanTiles, ANumberOfTilesIsTakenAsGiven) {
  EXPECT_EQ(PlanTiles({.tokens = 100, .hidden = 4096}, {.num_tiles = 7})->tiles.size(), 7u);
  EXPECT_EQ(PlanTiles({.tokens = 3, .hidden = 4096}, {.num_tiles = 7})->tiles.size(), 3u);
  EXPECT_EQ(PlanTiles({.tokens = 0, .hidden = 4096}, {.num_tiles = 7})->tiles.size(), 1u);
}

TEST(PlanTiles, RefusesWhatContradictsItself) {
  const absl::StatusOr<TilePlan> both =
      PlanTiles({.tokens = 8, .hidden = 4}, {.num_tiles = 2, .tile_tokens = 4});
  const absl::StatusOr<TilePlan> negative =
      PlanTiles({.tokens = 8, .hidden = 4}, {.tile_tokens = -4});

  EXPECT_EQ(std::string(both.status().message()),
            "tiled_mlp: give tiles or tile_tokens, not both (2 and 4)");
  EXPECT_EQ(std::string(negative.status().message()),
            "tiled_mlp: tiles and tile_tokens must be at least 1, not -4");
}

}  // namespace
}  // namespace lockstep::tiled_mlp
