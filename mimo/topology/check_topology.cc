#include "mimo/topology/check_topology.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "mimo/topology/problems.h"

namespace lockstep::mimo {
namespace {

using Problems = std::vector<std::string>;
using Ends = std::vector<std::pair<int, int>>;

// Ranks of the grid; kMaxWorldSize + 1 if there are more than that. Sizes are positive.
int64_t GridSize(const Module& module) {
  int64_t size = 1;
  for (int64_t axis : {module.tp, module.cp, module.dp, module.pp}) {
    if (axis > kMaxWorldSize / size) return kMaxWorldSize + 1;
    size *= axis;
  }
  return size;
}

std::string Ranks(int64_t count) { return absl::StrCat(count, count == 1 ? " rank" : " ranks"); }

std::string Shape(const Module& module) {
  return absl::StrCat("tp ", module.tp, " x cp ", module.cp, " x dp ", module.dp, " x pp ",
                      module.pp);
}

void CheckNames(const std::vector<Module>& modules, Problems* problems) {
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& name = modules[i].name;
    const int first = IndexOfModule(modules, name);
    if (name.empty()) {
      problems->push_back(absl::StrCat("module ", i, " has no name"));
    } else if (first < static_cast<int>(i)) {
      problems->push_back(absl::StrCat("modules ", first, " and ", i, " are both called ",
                                       Quoted(name), "; a name appears once"));
    }
  }
  if (IndexOfModule(modules, kLanguage) < 0) {
    problems->push_back(absl::StrCat(
        "no module is called \"language\", as the one that has the loss must be; there ",
        modules.empty() ? "is none" : "are ", NamesOf(modules)));
  }
}

// Whether sizes and order make a grid.
bool CheckGrid(const Module& module, Problems* problems) {
  const size_t before = problems->size();
  const std::pair<const char*, int64_t> sizes[] = {
      {"dp", module.dp}, {"tp", module.tp}, {"cp", module.cp}, {"pp", module.pp}};
  for (const auto& [axis, size] : sizes) {
    if (size >= 1) continue;
    problems->push_back(
        absl::StrCat(axis, " of ", Quoted(module.name), " is ", size, "; it must be positive"));
  }
  std::vector<std::string> axes = absl::StrSplit(module.order, '-');
  std::sort(axes.begin(), axes.end());
  if (axes != std::vector<std::string>{"cp", "dp", "pp", "tp"}) {
    problems->push_back(absl::StrCat("order of ", Quoted(module.name), " is ", Quoted(module.order),
                                     "; it must hold each of tp, cp, dp and pp once, as"
                                     " \"tp-cp-dp-pp\" does"));
  }
  if (problems->size() == before && GridSize(module) > kMaxWorldSize) {
    problems->push_back(absl::StrCat(Quoted(module.name), " of ", Shape(module), " has more than ",
                                     kMaxWorldSize, " ranks"));
  }
  return problems->size() == before;
}

// Fills in module->ranks from first_rank, as far as they lie in the world.
void PlaceRange(int64_t world_size, Module* module, Problems* problems) {
  const int64_t begin = module->first_rank;
  if (begin < 0) {
    problems->push_back(absl::StrCat("first_rank of ", Quoted(module->name), " is ", begin,
                                     "; it must not be negative"));
    return;
  }
  const int64_t size = GridSize(*module);
  if (begin > world_size - size) {
    problems->push_back(absl::StrCat(
        Quoted(module->name), " of ", Shape(*module), " has ", Ranks(size), " from ", begin,
        " on, but world_size is ", world_size,
        begin < kMaxWorldSize ? absl::StrCat("; use ", begin + size, " or more") : ""));
  }
  const int64_t end = std::min(begin, world_size - size) + size;
  for (int64_t rank = begin; rank < end; ++rank) {
    module->ranks.push_back(static_cast<int32_t>(rank));
  }
}

// Removes from module->ranks what is no rank of its own.
void PlaceList(int64_t world_size, Module* module, Problems* problems) {
  const std::string name = Quoted(module->name);
  const int32_t first = module->ranks[0];
  if (module->first_rank != 0 && module->first_rank != first) {
    problems->push_back(absl::StrCat(name, " has first_rank ", module->first_rank,
                                     " and a list of ranks that starts with ", first,
                                     "; give one of both"));
  }
  const int64_t listed = static_cast<int64_t>(module->ranks.size());
  const int64_t size = GridSize(*module);
  const int64_t replica = size / module->dp;
  if (listed != size) {
    problems->push_back(absl::StrCat(
        name, " lists ", Ranks(listed), ", but ", Shape(*module), " is ", size, "; list ", size,
        listed % replica == 0 ? absl::StrCat(" or use dp ", listed / replica) : ""));
  }
  std::vector<bool> seen(static_cast<size_t>(world_size), false);
  std::vector<int32_t> kept;
  for (int32_t rank : module->ranks) {
    if (rank < 0 || rank >= world_size) {
      problems->push_back(
          absl::StrCat(name, " lists rank ", rank, ", but ranks are 0 to ", world_size - 1));
    } else if (seen[static_cast<size_t>(rank)]) {
      problems->push_back(absl::StrCat(name, " lists rank ", rank, " twice"));
    } else {
      seen[static_cast<size_t>(rank)] = true;
      kept.push_back(rank);
    }
  }
  module->first_rank = first;
  module->ranks = std::move(kept);
}

// The modules of each rank, ascending.
using ModulesOfRank = std::vector<std::vector<int32_t>>;

bool IsRange(const Module& module) {
  for (size_t i = 1; i < module.ranks.size(); ++i) {
    if (module.ranks[i] != module.ranks[i - 1] + 1) return false;
  }
  return true;
}

// The first_rank that puts the later of two ranges behind the other; nothing for lists.
std::string HowToPart(const Module& one, const Module& other) {
  if (!IsRange(one) || !IsRange(other)) return "";
  const bool other_is_later = other.ranks[0] >= one.ranks[0];
  const Module& earlier = other_is_later ? one : other;
  const Module& later = other_is_later ? other : one;
  return absl::StrCat("; first_rank ", earlier.ranks.back() + 1, " for ", Quoted(later.name),
                      " parts them");
}

// Two modules share all of their ranks or none: all ranks of a module have the same modules.
void CheckOverlaps(const std::vector<Module>& modules, const ModulesOfRank& of_rank,
                   Problems* problems) {
  std::set<std::pair<int32_t, int32_t>> partial;
  for (size_t m = 0; m < modules.size(); ++m) {
    for (int32_t rank : modules[m].ranks) {
      const auto& first = of_rank[static_cast<size_t>(modules[m].ranks[0])];
      const auto& here = of_rank[static_cast<size_t>(rank)];
      if (here == first) continue;
      std::vector<int32_t> differing;
      std::set_symmetric_difference(first.begin(), first.end(), here.begin(), here.end(),
                                    std::back_inserter(differing));
      for (int32_t other : differing) partial.insert(std::minmax(static_cast<int32_t>(m), other));
    }
  }
  for (const auto& [a, b] : partial) {
    const Module& one = modules[static_cast<size_t>(a)];
    const Module& other = modules[static_cast<size_t>(b)];
    std::vector<int32_t> shared;
    for (int32_t rank : one.ranks) {
      const auto& here = of_rank[static_cast<size_t>(rank)];
      if (std::binary_search(here.begin(), here.end(), b)) shared.push_back(rank);
    }
    std::sort(shared.begin(), shared.end());
    const bool all_shown = shared.size() <= 8;
    if (!all_shown) shared.resize(8);
    problems->push_back(absl::StrCat(
        Quoted(one.name), " of ", Ranks(static_cast<int64_t>(one.ranks.size())), " and ",
        Quoted(other.name), " of ", other.ranks.size(), " overlap on ",
        shared.size() == 1 ? "rank " : "ranks ", absl::StrJoin(shared, ", "),
        all_shown ? "" : ", ...", "; modules share all of their ranks (colocated) or none",
        HowToPart(one, other)));
  }
}

// Every rank has a module.
void CheckGaps(const std::vector<Module>& modules, const ModulesOfRank& of_rank,
               Problems* problems) {
  const int64_t world_size = static_cast<int64_t>(of_rank.size());
  for (int64_t begin = 0; begin < world_size; ++begin) {
    int64_t end = begin;
    while (end < world_size && of_rank[static_cast<size_t>(end)].empty()) ++end;
    if (end == begin) continue;
    std::string problem =
        absl::StrCat(RankSpan(begin, end), end - begin == 1 ? " has" : " have", " no module; ");
    if (end < world_size || begin == 0) {
      absl::StrAppend(&problem, "modules cover every rank from 0 to ", world_size - 1);
    } else {
      absl::StrAppend(&problem, "use world_size ", begin);
      const int32_t last = of_rank[static_cast<size_t>(begin) - 1].front();
      const Module& module = modules[static_cast<size_t>(last)];
      const int64_t replica = static_cast<int64_t>(module.ranks.size()) / module.dp;
      if (replica > 0 && (end - begin) % replica == 0) {
        absl::StrAppend(&problem, ", or dp ", module.dp + (end - begin) / replica, " for ",
                        Quoted(module.name));
      }
    }
    problems->push_back(std::move(problem));
    begin = end;
  }
}

// Modules, each after all that feed it; fewer than all if edges make a cycle.
std::vector<int> ForwardOrder(size_t num_modules, const Ends& ends) {
  std::vector<int> order;
  std::vector<bool> placed(num_modules, false);
  for (bool found = true; found;) {
    found = false;
    for (size_t m = 0; m < num_modules && !found; ++m) {
      const bool ready = !placed[m] && std::all_of(ends.begin(), ends.end(), [&](const auto& end) {
        return end.second != static_cast<int>(m) || placed[static_cast<size_t>(end.first)];
      });
      if (!ready) continue;
      placed[m] = found = true;
      order.push_back(static_cast<int>(m));
    }
  }
  return order;
}

// "a -> b -> a", among the modules that ForwardOrder could not place: each of them has one before
// it that it could not place either, so walking back comes round.
std::string CycleOf(const std::vector<Module>& modules, const std::vector<int>& order,
                    const Ends& ends) {
  const std::set<int> placed(order.begin(), order.end());
  int at = 0;
  while (placed.count(at) > 0) ++at;
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), at) == path.end()) {
    path.push_back(at);
    at = std::find_if(ends.begin(), ends.end(), [&](const auto& end) {
           return end.second == at && placed.count(end.first) == 0;
         })->first;
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), at));
  path.push_back(at);
  std::reverse(path.begin(), path.end());
  return absl::StrJoin(path, " -> ", [&](std::string* out, int m) {
    absl::StrAppend(out, modules[static_cast<size_t>(m)].name);
  });
}

void CheckEdges(TopologyParts* parts, Problems* problems) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const Edge& edge : parts->edges) {
    const std::string arrow = absl::StrCat("edge ", edge.from, " -> ", edge.to);
    for (const std::string& name : {edge.from, edge.to}) {
      if (IndexOfModule(parts->modules, name) >= 0) continue;
      problems->push_back(absl::StrCat(arrow, ": no module is called ", Quoted(name),
                                       "; there are ", NamesOf(parts->modules)));
    }
    if (!seen.insert({edge.from, edge.to}).second) {
      problems->push_back(absl::StrCat(arrow, " appears twice"));
    }
    const int from = IndexOfModule(parts->modules, edge.from);
    const int to = IndexOfModule(parts->modules, edge.to);
    if (from >= 0 && to >= 0) parts->edge_ends.emplace_back(from, to);
  }
  parts->forward_order = ForwardOrder(parts->modules.size(), parts->edge_ends);
  if (parts->forward_order.size() == parts->modules.size()) return;
  problems->push_back(absl::StrCat(
      "edges make a cycle: ", CycleOf(parts->modules, parts->forward_order, parts->edge_ends),
      "; leave one of them out"));
}

}  // namespace

std::vector<std::string> CheckTopology(TopologyParts* parts) {
  const int64_t world_size = parts->world_size;
  std::vector<Module>& modules = parts->modules;
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return {absl::StrCat("world_size is from 1 to ", kMaxWorldSize)};
  }
  Problems problems;
  CheckNames(modules, &problems);
  ModulesOfRank of_rank(static_cast<size_t>(world_size));
  bool all_are_placed = true;
  for (size_t m = 0; m < modules.size(); ++m) {
    const size_t before = problems.size();
    if (!CheckGrid(modules[m], &problems)) {
      modules[m].ranks.clear();
    } else if (modules[m].ranks.empty()) {
      PlaceRange(world_size, &modules[m], &problems);
    } else {
      PlaceList(world_size, &modules[m], &problems);
    }
    all_are_placed = all_are_placed && problems.size() == before;
    for (int32_t rank : modules[m].ranks) {
      of_rank[static_cast<size_t>(rank)].push_back(static_cast<int32_t>(m));
    }
  }
  CheckOverlaps(modules, of_rank, &problems);
  // A module that is not placed would leave gaps of its own.
  if (all_are_placed && !modules.empty()) CheckGaps(modules, of_rank, &problems);

  const bool has_default_edges = !parts->has_edges;
  for (const Module& module : modules) {
    if (has_default_edges && module.name != kLanguage) {
      parts->edges.push_back({module.name, kLanguage});
    }
  }
  // Default edges are wrong only where names are, and that is said.
  Problems of_edges;
  CheckEdges(parts, &of_edges);
  if (!has_default_edges) problems.insert(problems.end(), of_edges.begin(), of_edges.end());
  return problems;
}

int IndexOfModule(const std::vector<Module>& modules, absl::string_view name) {
  for (size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::string Quoted(absl::string_view name) { return absl::StrCat("\"", name, "\""); }

std::string NamesOf(const std::vector<Module>& modules) {
  return absl::StrJoin(modules, ", ", [](std::string* out, const Module& module) {
    absl::StrAppend(out, Quoted(module.name));
  });
}

}  // namespace lockstep::mimo
