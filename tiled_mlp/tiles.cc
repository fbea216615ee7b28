#include "tiled_mlp/tiles.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::tiled_mlp {

std::vector<TileRange> BalancedTiles(int64_t tokens, int64_t num_tiles) {
  if (tokens == 0) return {TileRange{}};
  num_tiles = std::min(num_tiles, tokens);
  const int64_t size = tokens / num_tiles;
  const int64_t larger = tokens % num_tiles;  // so many tiles have one row more
  std::vector<TileRange> tiles;
  int64_t begin = 0;
  for (int64_t i = 0; i < num_tiles; ++i) {
    const int64_t end = begin + size + (i < larger ? 1 : 0);
    tiles.push_back({begin, end});
    begin = end;
  }
  return tiles;
}

int64_t DefaultTileTokens(int64_t hidden, int64_t widest) {
  constexpr int64_t kMultiple = 128;
  constexpr int64_t kLeast = 1024;
  const int64_t wanted = (2 * hidden + kMultiple - 1) / kMultiple * kMultiple;
  const int64_t indexable =
      std::numeric_limits<int32_t>::max() / std::max<int64_t>({1, hidden, widest});
  return std::max<int64_t>(1, std::min(std::max(kLeast, wanted), indexable));
}

absl::StatusOr<TilePlan> PlanTiles(const MlpSizes& mlp, const TileSize& size) {
  if (size.num_tiles < 0 || size.tile_tokens < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("tiled_mlp: tiles and tile_tokens must be at least 1, not ",
                     std::min(size.num_tiles, size.tile_tokens)));
  if (size.num_tiles > 0 && size.tile_tokens > 0)
    return absl::InvalidArgumentError(
        absl::StrCat("tiled_mlp: give tiles or tile_tokens, not both (", size.num_tiles, " and ",
                     size.tile_tokens, ")"));
  TilePlan plan;
  if (size.num_tiles > 0) {
    plan.tiles = BalancedTiles(mlp.tokens, size.num_tiles);
    plan.tile_tokens = plan.tiles.front().size();
    return plan;
  }
  plan.tile_tokens =
      size.tile_tokens > 0
          ? size.tile_tokens
          : DefaultTileTokens(mlp.hidden, mlp.widest > 0 ? mlp.widest : 4 * mlp.hidden);
  const double break_even = static_cast<double>(plan.tile_tokens) +
                            0.75 * static_cast<double>(mlp.hidden) * mlp.gradients_held;
  if (static_cast<double>(mlp.tokens) <= break_even) return plan;
  plan.tiles = BalancedTiles(mlp.tokens, (mlp.tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  return plan;
}

}  // namespace lockstep::tiled_mlp
