// What a drawing of a topology shows, before it is text or SVG.

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
  // Of each replica of `to` that is shown: the replicas of `from` whose samples it takes.
  std::vector<Range> sources;
};

struct Picture {
  std::vector<ModulePicture> modules;
  std::vector<EdgePicture> edges;
};

Picture MakePicture(const Topology& topology, const DrawOptions& options);

// "0-3, 8, 10-11", of numbers in any order; after `max_shown` runs of them, "and 5 more".
std::string NumberList(std::vector<int32_t> numbers, int64_t max_shown);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_DRAW_PICTURE_H_
