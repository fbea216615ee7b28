// Random topologies and ownership tables for tests.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_RANDOM_TOPOLOGY_H_
#define LOCKSTEP_MIMO_TOPOLOGY_RANDOM_TOPOLOGY_H_

#include <cstdint>
#include <random>

#include "mimo/batch/ownership.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// A uniform number of [low, high].
int64_t Draw(std::mt19937& random, int64_t low, int64_t high);

// One to four modules with dp to 4, tp and pp to 3, cp to 2, in any order of axes: on ranges, on
// shuffled lists of ranks, or in pairs on the same ranks. Edges: the default, or any without a
// cycle.
Topology RandomTopology(std::mt19937& random);

// Of `num_samples` samples: none to 3 items each, of none to 5 tokens.
Ownership RandomOwnership(std::mt19937& random, int64_t num_samples);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TOPOLOGY_RANDOM_TOPOLOGY_H_
