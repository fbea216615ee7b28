// Checks all rules of a topology before it reports any. Private to topology.cc.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_CHECK_TOPOLOGY_H_
#define LOCKSTEP_MIMO_TOPOLOGY_CHECK_TOPOLOGY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// The arguments of Topology::Make, and values that the checks derive.
struct TopologyParts {
  int64_t world_size = 0;
  std::vector<Module> modules = {};
  bool has_edges = false;  // false: the default edges
  std::vector<Edge> edges = {};
  std::vector<std::pair<int, int>> edge_ends = {};  // indices of modules
  std::vector<int> forward_order = {};
};

// Returns every broken rule, in the order of Topology::Make's list. Without broken rules, completes
// `parts`: the ranks of modules and the default edges.
std::vector<std::string> CheckTopology(TopologyParts* parts);

// Returns the index of the module with this name, or -1.
int IndexOfModule(const std::vector<Module>& modules, absl::string_view name);

std::string Quoted(absl::string_view name);

// Returns the names, quoted and joined by commas.
std::string NamesOf(const std::vector<Module>& modules);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TOPOLOGY_CHECK_TOPOLOGY_H_
