#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "mimo/draw/draw.h"
#include "mimo/draw/picture.h"

namespace lockstep::mimo {
namespace {

// Rows of cells, each column as wide as its widest.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const size_t gap = c + 1 < row.size() ? widths[c] - row[c].size() + 2 : 0;
      absl::StrAppend(&text, c == 0 ? "  " : "", row[c], std::string(gap, ' '));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string ModuleText(const ModulePicture& module) {
  std::vector<std::vector<std::string>> rows = {{"replica"}};
  for (size_t r = 0; r < module.ranks[0].size(); ++r) rows[0].push_back(absl::StrCat(r));
  if (module.hidden_replicas > 0) {
    rows[0].push_back(absl::StrCat("and ", module.hidden_replicas, " more"));
  }
  if (!module.samples.empty()) {
    rows.push_back({"samples"});
    rows.back().insert(rows.back().end(), module.samples.begin(), module.samples.end());
  }
  for (size_t stage = 0; stage < module.ranks.size(); ++stage) {
    rows.push_back({module.ranks.size() > 1 ? absl::StrCat("stage ", stage) : "ranks"});
    rows.back().insert(rows.back().end(), module.ranks[stage].begin(), module.ranks[stage].end());
  }
  return absl::StrCat(module.name, "  ", module.shape, "\n", Table(rows));
}

std::string EdgeText(const Picture& picture, const EdgePicture& edge) {
  const ModulePicture& to = picture.modules[static_cast<size_t>(edge.to)];
  std::vector<std::vector<std::string>> rows;
  for (size_t r = 0; r < edge.sources.size(); ++r) {
    const Range& sources = edge.sources[r];
    if (sources.size() == 0) continue;
    rows.push_back({absl::StrCat("replica ", r), absl::StrCat("from ", sources.begin)});
    if (sources.size() > 1) absl::StrAppend(&rows.back()[1], "-", sources.end - 1);
  }
  return absl::StrCat(picture.modules[static_cast<size_t>(edge.from)].name, " -> ", to.name, "\n",
                      Table(rows));
}

}  // namespace

std::string DrawText(const Topology& topology, const DrawOptions& options) {
  const Picture picture = MakePicture(topology, options);
  std::string text = absl::StrCat("world of ", topology.world_size(),
                                  topology.world_size() == 1 ? " rank\n" : " ranks\n");
  for (const ModulePicture& module : picture.modules) {
    absl::StrAppend(&text, "\n", ModuleText(module));
  }
  for (const EdgePicture& edge : picture.edges) {
    absl::StrAppend(&text, "\n", EdgeText(picture, edge));
  }
  return text;
}

}  // namespace lockstep::mimo
