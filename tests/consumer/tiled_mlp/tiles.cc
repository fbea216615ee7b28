// Another project's program: how many tiles a sequence is cut into, with @lockstep//tiled_mlp.

#include "lockstep/tiled_mlp/tiles.h"

#include <cstdio>

#include "absl/status/statusor.h"

int main() {
  namespace tiled_mlp = lockstep::tiled_mlp;
  const absl::StatusOr<tiled_mlp::TilePlan> plan =
      tiled_mlp::PlanTiles({.tokens = 100'000, .hidden = 4096, .widest = 14336}, {});
  if (!plan.ok()) return 1;
  std::printf("%d tiles of at most %d tokens\n", static_cast<int>(plan->tiles.size()),
              static_cast<int>(plan->tile_tokens));
  return 0;
}
