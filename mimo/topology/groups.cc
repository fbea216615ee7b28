#include "mimo/topology/groups.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lockstep::mimo {
namespace {

int64_t SizeOf(const Module& module, absl::string_view axis) {
  if (axis == "tp") return module.tp;
  if (axis == "cp") return module.cp;
  if (axis == "dp") return module.dp;
  return module.pp;
}

// Every offset, and each of them again for each coordinate of the axis, which varies fastest.
std::vector<int64_t> TimesAxis(const std::vector<int64_t>& offsets, int64_t size, int64_t stride) {
  std::vector<int64_t> product;
  product.reserve(offsets.size() * static_cast<size_t>(size));
  for (int64_t offset : offsets) {
    for (int64_t i = 0; i < size; ++i) product.push_back(offset + i * stride);
  }
  return product;
}

// The first and the last stage of each pipeline, once where they are the same.
GroupSet EmbeddingGroups(const Topology& topology, int module) {
  const Module& grid = topology.modules()[static_cast<size_t>(module)];
  const absl::StatusOr<GroupSet> pipelines = ModuleGroups(topology, module, "pp");
  GroupSet set = {absl::StrCat(grid.name, "/embedding"), std::min<int64_t>(grid.pp, 2), {}};
  for (int64_t i = 0; i < pipelines->num_groups(); ++i) {
    set.ranks.push_back(pipelines->group(i).front());
    if (grid.pp > 1) set.ranks.push_back(pipelines->group(i).back());
  }
  return set;
}

}  // namespace

std::vector<int32_t> EnumerateGroups(absl::Span<const Axis> axes,
                                     absl::Span<const absl::string_view> listed,
                                     int64_t first_rank) {
  std::vector<int64_t> strides;
  int64_t stride = 1;
  for (const Axis& axis : axes) {
    strides.push_back(stride);
    stride *= axis.size;
  }
  std::vector<int64_t> groups = {first_rank};
  for (size_t a = axes.size(); a-- > 0;) {
    if (std::find(listed.begin(), listed.end(), axes[a].name) != listed.end()) continue;
    groups = TimesAxis(groups, axes[a].size, strides[a]);
  }
  for (absl::string_view name : listed) {
    for (size_t a = 0; a < axes.size(); ++a) {
      if (axes[a].name == name) groups = TimesAxis(groups, axes[a].size, strides[a]);
    }
  }
  return {groups.begin(), groups.end()};
}

absl::StatusOr<GroupSet> ModuleGroups(const Topology& topology, int module,
                                      absl::string_view axes) {
  const Module& grid = topology.modules()[static_cast<size_t>(module)];
  std::vector<absl::string_view> wanted = absl::StrSplit(axes, '-');
  std::vector<Axis> all;
  std::vector<absl::string_view> listed;
  GroupSet set = {absl::StrCat(grid.name, "/", axes), 1, {}};
  for (absl::string_view axis : absl::StrSplit(grid.order, '-')) {
    all.push_back({std::string(axis), SizeOf(grid, axis)});
    const auto found = std::find(wanted.begin(), wanted.end(), axis);
    if (found == wanted.end()) continue;
    wanted.erase(found);
    listed.insert(listed.begin(), axis);
    set.group_size *= all.back().size;
  }
  if (!wanted.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mimo: groups over \"", axes, "\": \"", wanted[0],
        "\" is unknown or appears twice; axes are tp, cp, dp and pp, joined by \"-\""));
  }
  set.ranks = EnumerateGroups(all, listed);
  for (int32_t& rank : set.ranks) rank = grid.ranks[static_cast<size_t>(rank)];
  return set;
}

GroupSet EdgeGroup(const Topology& topology, int edge) {
  const Edge& names = topology.edges()[static_cast<size_t>(edge)];
  GroupSet set = {absl::StrCat(names.from, ">", names.to), 1, {}};
  for (bool is_from : {true, false}) {
    const int module = is_from ? topology.from(edge) : topology.to(edge);
    const Module& grid = topology.modules()[static_cast<size_t>(module)];
    const auto stage = static_cast<int32_t>(is_from ? grid.pp - 1 : 0);
    for (int32_t dp = 0; dp < grid.dp; ++dp) {
      for (int32_t cp = 0; cp < grid.cp; ++cp) {
        for (int32_t tp = 0; tp < grid.tp; ++tp) {
          set.ranks.push_back(topology.rank(module, {dp, tp, cp, stage}));
        }
      }
    }
  }
  std::sort(set.ranks.begin(), set.ranks.end());
  set.ranks.erase(std::unique(set.ranks.begin(), set.ranks.end()), set.ranks.end());
  set.group_size = static_cast<int64_t>(set.ranks.size());
  return set;
}

std::vector<GroupSet> ProcessGroups(const Topology& topology) {
  std::vector<GroupSet> sets;
  for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m) {
    for (absl::string_view axes :
         {"tp", "cp", "pp", "dp", "dp-cp", "tp-cp", "tp-pp", "tp-dp-cp", "tp-cp-dp-pp"}) {
      sets.push_back(*ModuleGroups(topology, m, axes));
    }
    sets.push_back(EmbeddingGroups(topology, m));
  }
  for (int e = 0; e < static_cast<int>(topology.edges().size()); ++e) {
    sets.push_back(EdgeGroup(topology, e));
  }
  GroupSet world = {"world", topology.world_size(), {}};
  world.ranks.resize(static_cast<size_t>(topology.world_size()));
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  sets.push_back(std::move(world));
  return sets;
}

}  // namespace lockstep::mimo
