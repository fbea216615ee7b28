#include "mimo/draw/picture.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "mimo/batch/ownership.h"

namespace lockstep::mimo {
namespace {

int64_t NumShown(const DrawOptions& options) { return std::max<int64_t>(options.max_replicas, 1); }

std::string RanksOfCell(const Topology& topology, int module, int32_t dp, int32_t pp,
                        int64_t max_ranks) {
  const Module& grid = topology.modules()[static_cast<size_t>(module)];
  std::vector<int32_t> ranks;
  for (int32_t cp = 0; cp < grid.cp; ++cp) {
    for (int32_t tp = 0; tp < grid.tp; ++tp)
      ranks.push_back(topology.rank(module, {dp, tp, cp, pp}));
  }
  return NumberList(std::move(ranks), max_ranks);
}

ModulePicture DrawModule(const Topology& topology, int module, const DrawOptions& options) {
  const Module& grid = topology.modules()[static_cast<size_t>(module)];
  ModulePicture picture;
  picture.name = grid.name;
  picture.shape = absl::StrCat("dp ", grid.dp, ", tp ", grid.tp, ", cp ", grid.cp, ", pp ", grid.pp,
                               grid.ranks.size() == 1 ? ", rank " : ", ranks ",
                               NumberList(grid.ranks, options.max_ranks));
  const int64_t shown = std::min(grid.dp, NumShown(options));
  picture.hidden_replicas = grid.dp - shown;
  for (int64_t dp = 0; dp < shown && options.micro_batch_size > 0; ++dp) {
    const Range samples = Part({0, options.micro_batch_size}, dp, grid.dp);
    picture.samples.push_back(absl::StrCat("[", samples.begin, ", ", samples.end, ")"));
  }
  for (int32_t pp = 0; pp < grid.pp; ++pp) {
    picture.ranks.emplace_back();
    for (int32_t dp = 0; dp < shown; ++dp) {
      picture.ranks.back().push_back(RanksOfCell(topology, module, dp, pp, options.max_ranks));
    }
  }
  return picture;
}

// Replicas whose samples overlap, for each of `to` that is shown; without a micro-batch size, of
// one that suits both sides.
std::vector<Range> SourcesOf(int64_t from_dp, int64_t to_dp, const DrawOptions& options) {
  const int64_t samples = options.micro_batch_size > 0 ? options.micro_batch_size : from_dp * to_dp;
  std::vector<Range> sources;
  for (int64_t to = 0; to < std::min(to_dp, NumShown(options)); ++to) {
    const Range taken = Part({0, samples}, to, to_dp);
    Range found;
    for (int64_t from = 0; from < from_dp; ++from) {
      const Range sent = Part({0, samples}, from, from_dp);
      if (std::max(sent.begin, taken.begin) >= std::min(sent.end, taken.end)) continue;
      if (found.size() == 0) found.begin = from;
      found.end = from + 1;
    }
    sources.push_back(found);
  }
  return sources;
}

}  // namespace

Picture MakePicture(const Topology& topology, const DrawOptions& options) {
  Picture picture;
  for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m) {
    picture.modules.push_back(DrawModule(topology, m, options));
  }
  const int edges = static_cast<int>(topology.edges().size());
  for (int module : topology.forward_order()) {
    for (int e = 0; e < edges; ++e) {
      if (topology.to(e) != module) continue;
      int& level = picture.modules[static_cast<size_t>(module)].level;
      level = std::max(level, picture.modules[static_cast<size_t>(topology.from(e))].level + 1);
    }
  }
  for (int e = 0; e < edges; ++e) {
    const int from = topology.from(e);
    const int to = topology.to(e);
    picture.edges.push_back({from, to,
                             SourcesOf(topology.modules()[static_cast<size_t>(from)].dp,
                                       topology.modules()[static_cast<size_t>(to)].dp, options)});
  }
  return picture;
}

std::string NumberList(std::vector<int32_t> numbers, int64_t max_shown) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  int64_t shown = 0;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (shown >= max_shown) {
      return absl::StrCat(text, shown > 0 ? " and " : "", numbers.size() - i, " more");
    }
    absl::StrAppend(&text, shown > 0 ? ", " : "", numbers[i]);
    if (end - i > 1) absl::StrAppend(&text, "-", numbers[end - 1]);
    ++shown;
    i = end;
  }
  return text;
}

}  // namespace lockstep::mimo
