// A topology as a picture: each module's grid with its ranks, the samples of each replica, the
// edges.
//
//   std::cout << DrawText(*topology, {.micro_batch_size = 6});
//   // world of 4 ranks
//   //
//   // vision    dp 3, tp 1, cp 1, pp 1
//   //           replica 0   replica 1   replica 2
//   // samples   [0, 2)      [2, 4)      [4, 6)
//   // ranks     0           1           2
//   // ...

#ifndef LOCKSTEP_MIMO_DRAW_DRAW_H_
#define LOCKSTEP_MIMO_DRAW_DRAW_H_

#include <cstdint>
#include <string>

#include "mimo/topology/topology.h"

namespace lockstep::mimo {

struct DrawOptions {
  int64_t micro_batch_size = 0;  // to show each replica's samples, near equal; 0: not shown
  int64_t max_replicas = 16;     // of a module; the rest is counted
  int64_t max_ranks = 16;        // runs of ranks of a cell; the rest is counted
};

// Lines of text.
std::string DrawText(const Topology& topology, const DrawOptions& options = {});

// A whole SVG file, readable on light and dark grounds.
std::string DrawSvg(const Topology& topology, const DrawOptions& options = {});

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_DRAW_DRAW_H_
