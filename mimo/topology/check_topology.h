// The rules of a topology, all of them checked before any is reported.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_CHECK_TOPOLOGY_H_
#define LOCKSTEP_MIMO_TOPOLOGY_CHECK_TOPOLOGY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// What Topology::Make was given, and what the checks find on the way.
struct TopologyParts {
  int64_t world_size = 0;
  std::vector<Module> modules = {};
  bool has_edges = false;  // else they are the default's
  std::vector<Edge> edges = {};
  std::vector<std::pair<int, int>> edge_ends = {};  // indices of modules
  std::vector<int> forward_order = {};
};

// Every broken rule, in the order of Topology::Make's list. Without any, `parts` is complete:
// modules have their ranks, edges their default.
std::vector<std::string> CheckTopology(TopologyParts* parts);

// -1 if there is none.
int IndexOfModule(const std::vector<Module>& modules, absl::string_view name);

std::string Quoted(absl::string_view name);

// "vision", "language": quoted, joined by commas.
std::string NamesOf(const std::vector<Module>& modules);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TOPOLOGY_CHECK_TOPOLOGY_H_
