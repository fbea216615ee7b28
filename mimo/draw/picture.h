// The content of a drawing of a topology, before it becomes text or SVG.

#ifndef LOCKSTEP_MIMO_DRAW_PICTURE_H_
#define LOCKSTEP_MIMO_DRAW_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "mimo/batch/ownership.h"
#include "mimo/draw/draw.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

struct ModulePicture {
  std::string name;
  std::string shape;                            // "dp 3, tp 1, cp 1, pp 1, ranks 0-2"
  int level = 0;                                // edges on the longest path to it
  int64_t hidden_replicas = 0;                  // beyond those shown
  std::vector<std::string> samples;             // of each replica; empty without micro_batch_size
  std::vector<std::vector<std::string>> ranks;  // [stage][replica]
};

struct EdgePicture {
  int from = 0;  // modules
  int to = 0;
  // For each replica of `to` that is shown: the replicas of `from` that its samples come from.
  std::vector<Range> sources;
};

struct Picture {
  std::vector<ModulePicture> modules;
  std::vector<EdgePicture> edges;
};

Picture MakePicture(const Topology& topology, const DrawOptions& options);

// Returns "0-3, 8, 10-11" for numbers in any order. After `max_shown` runs it adds "and 5 more".
std::string NumberList(std::vector<int32_t> numbers, int64_t max_shown);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_DRAW_PICTURE_H_
