// Chooses how many tiles a sequence is cut into, and where, from sizes alone.
//
//    TilePlan plan = *PlanTiles({.tokens = 100'000, .hidden = 4096, .widest = 14336}, {});
//    for (const TileRange& tile : plan.tiles) ...   // empty: run it untiled
//
// The result does not depend on free memory or on other ranks. So ranks with equal shapes use equal
// tiles without communication. Ranks with different shapes need no equal tiles.
//
// Size. A tile of T tokens keeps about 4 * T * intermediate activations in backward. The sum of the
// weight gradients keeps 3 * hidden * intermediate. A tile's share of one weight at a time adds a
// third of that. Beyond T = 2 * hidden the activations are the larger part, and a larger tile only
// costs memory. Far below it, matrix multiplications spend their time on loading weights. So T is
// 2 * hidden, in multiples of 128 and at least 1,024. T * widest stays below 2^31 elements, so that
// kernels index by 32 bits.
//
// Break-even. Tiling n tokens saves 4 * (n - T) * intermediate and costs the gradient buffers. It
// pays from n = T + 0.75 * hidden * (weight gradients held at a time).
//
// Source: docs/tiled_mlp.md (derivation); arXiv 2506.13996 (ALST), with tiles of about `hidden`.
// Thread-safe: pure functions.

#ifndef LOCKSTEP_TILED_MLP_TILES_H_
#define LOCKSTEP_TILED_MLP_TILES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::tiled_mlp {

// The rows from `begin` to `end` - 1.
struct TileRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Returns min(num_tiles, tokens) tiles in order, whose sizes differ by at most 1. Returns one empty
// tile for 0 tokens. `num_tiles` is at least 1.
std::vector<TileRange> BalancedTiles(int64_t tokens, int64_t num_tiles);

struct MlpSizes {
  int64_t tokens = 0;  // in all sequences of the batch
  int64_t hidden = 0;
  int64_t widest = 0;               // the intermediate size; 0: unknown, defaults to 4 * hidden
  double gradients_held = 4.0 / 3;  // copies of the weight gradients during a tile's backward
};

// The caller's choice: at most one of these is above 0.
struct TileSize {
  int64_t num_tiles = 0;    // number of tiles, even below break-even
  int64_t tile_tokens = 0;  // maximum tokens of a tile
};

struct TilePlan {
  std::vector<TileRange> tiles;  // empty: below break-even, run untiled
  int64_t tile_tokens = 0;       // the maximum tokens of a tile
};

// Returns the tile size T described above.
int64_t DefaultTileTokens(int64_t hidden, int64_t widest);

// Returns the tiles, or InvalidArgument if a size is negative or both sizes are given.
absl::StatusOr<TilePlan> PlanTiles(const MlpSizes& mlp, const TileSize& size);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_TILES_H_
