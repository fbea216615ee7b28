// Draws a topology: each module's grid with its ranks, the samples of each replica, the edges.
//
//    std::cout << DrawText(*topology, {.micro_batch_size = 6});
//    // world of 4 ranks
//    //
//    // vision    dp 3, tp 1, cp 1, pp 1
//    //           replica 0   replica 1   replica 2
//    // samples   [0, 2)      [2, 4)      [4, 6)
//    // ranks     0           1           2
//    // ...
//
// Use it to check a configuration before a run. Thread-safe: no state.

#ifndef LOCKSTEP_MIMO_DRAW_DRAW_H_
#define LOCKSTEP_MIMO_DRAW_DRAW_H_

#include <cstdint>
#include <string>

#include "mimo/topology/topology.h"

namespace lockstep::mimo {

struct DrawOptions {
  int64_t micro_batch_size = 0;  // divides the samples over replicas; 0: no samples
  int64_t max_replicas = 16;     // of a module; others are counted
  int64_t max_ranks = 16;        // runs of ranks of a cell; others are counted
};

// Returns the drawing as lines of text.
std::string DrawText(const Topology& topology, const DrawOptions& options = {});

// Returns the drawing as a complete SVG file, readable on light and dark backgrounds.
std::string DrawSvg(const Topology& topology, const DrawOptions& options = {});

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_DRAW_DRAW_H_
