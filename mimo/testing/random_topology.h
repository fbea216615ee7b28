// Random topologies and ownership tables for tests.

#ifndef LOCKSTEP_MIMO_TESTING_RANDOM_TOPOLOGY_H_
#define LOCKSTEP_MIMO_TESTING_RANDOM_TOPOLOGY_H_

#include <cstdint>
#include <random>

#include "mimo/batch/ownership.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// Returns a uniform random number from [low, high].
int64_t Draw(std::mt19937& random, int64_t low, int64_t high);

// Returns a random topology of one to four modules, with dp up to 4, tp and pp up to 3, cp up to 2,
// and axes in any order. Modules are on ranges of ranks, on shuffled lists, or in pairs on the same
// ranks. The edges are the default, or any edges without a cycle.
Topology RandomTopology(std::mt19937& random);

// Returns a random table of `num_samples` samples with 0 to 3 items each, of 0 to 5 tokens.
Ownership RandomOwnership(std::mt19937& random, int64_t num_samples);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TESTING_RANDOM_TOPOLOGY_H_
