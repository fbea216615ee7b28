// How many tiles a sequence is cut into, and where: arithmetic on sizes alone.
//
//   TilePlan plan = *PlanTiles({.tokens = 100'000, .hidden = 4096, .widest = 14336}, {});
//   for (const TileRange& tile : plan.tiles) ...   // none: run it untiled
//
// The answer depends on sizes alone, never on free memory or on another rank, so ranks that hold
// equal shapes cut alike with no communication; ranks that hold different shapes need not.
//
// Size. A tile of T tokens keeps about 4 * T * intermediate activations while its gradient is
// computed; the sum of the weight gradients keeps 3 * hidden * intermediate, and a tile's share of
// it a third of that, for one weight at a time. Beyond T = 2 * hidden the activations are the
// larger part and a larger tile only costs memory; far below it a matrix multiplication spends its
// time on the weights. So T = 2 * hidden, in multiples of 128 and at least 1,024, and so that T *
// widest stays below 2^31 elements, where kernels still index by 32 bits.
//
// Break-even. Tiling n tokens saves 4 * (n - T) * intermediate and costs those gradient buffers: it
// pays from n = T + 0.75 * hidden * (weight gradients held at a time) on.
//
// Source: docs/tiled_mlp.md has the derivation; arXiv 2506.13996 (ALST) tiles of about `hidden`.
// Thread-safe: pure functions.

#ifndef LOCKSTEP_TILED_MLP_TILES_H_
#define LOCKSTEP_TILED_MLP_TILES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::tiled_mlp {

// Rows begin to end - 1.
struct TileRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// min(num_tiles, tokens) tiles in order, sizes that differ by one at most; one empty tile for no
// tokens. `num_tiles` is at least 1.
std::vector<TileRange> BalancedTiles(int64_t tokens, int64_t num_tiles);

struct MlpSizes {
  int64_t tokens = 0;  // of all sequences of the batch together
  int64_t hidden = 0;
  int64_t widest = 0;               // the intermediate size; 0: unknown, taken as 4 * hidden
  double gradients_held = 4.0 / 3;  // copies of the weight gradients that a tile's backward holds
};

// What the caller asks for; at most one of them.
struct TileSize {
  int64_t num_tiles = 0;    // this many, even where it does not pay
  int64_t tile_tokens = 0;  // at most so many tokens in a tile
};

struct TilePlan {
  std::vector<TileRange> tiles;  // none: below break-even, to be run untiled
  int64_t tile_tokens = 0;       // what was aimed at
};

int64_t DefaultTileTokens(int64_t hidden, int64_t widest);

// InvalidArgument where a size is negative, or both are given.
absl::StatusOr<TilePlan> PlanTiles(const MlpSizes& mlp, const TileSize& size);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_TILES_H_
