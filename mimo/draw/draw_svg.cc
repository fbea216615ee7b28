#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "mimo/draw/draw.h"
#include "mimo/draw/picture.h"

// Modules that nothing feeds are at the top, each other below all that feed it, those of one level
// side by side. A box holds a column for each replica and a row for each stage; links go from the
// foot of a replica to the head of those that take its samples.

namespace lockstep::mimo {
namespace {

// Pixels.
constexpr int64_t kCharacter = 7;  // width, at font size 12
constexpr int64_t kMargin = 20;
constexpr int64_t kLine = 20;
constexpr int64_t kTitle = 28;
constexpr int64_t kCellGap = 6;
constexpr int64_t kModuleGap = 40;
constexpr int64_t kLevelGap = 70;
constexpr int64_t kLabel = 64;  // "samples", "stage 0"

struct Box {
  int64_t x = 0;
  int64_t y = 0;
  int64_t cell_width = 0;
  int64_t width = 0;
  int64_t height = 0;
  int64_t replicas = 0;  // shown

  int64_t CellX(int64_t replica) const { return x + kLabel + replica * (cell_width + kCellGap); }
};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Text(int64_t x, int64_t y, absl::string_view text, absl::string_view attributes = "") {
  return absl::StrCat("<text x=\"", x, "\" y=\"", y, "\"", attributes, ">", Escaped(text),
                      "</text>\n");
}

std::string Rectangle(int64_t x, int64_t y, int64_t width, int64_t height,
                      absl::string_view attributes) {
  return absl::StrCat("<rect x=\"", x, "\" y=\"", y, "\" width=\"", width, "\" height=\"", height,
                      "\" ", attributes, "/>\n");
}

std::string TitleOf(const ModulePicture& module) {
  return absl::StrCat(module.name, ": ", module.shape);
}

std::string MoreOf(const ModulePicture& module) {
  return module.hidden_replicas > 0 ? absl::StrCat("and ", module.hidden_replicas, " more") : "";
}

int64_t RowsOf(const ModulePicture& module) {
  return static_cast<int64_t>(module.ranks.size()) + (module.samples.empty() ? 0 : 1);
}

// Sizes alone.
Box Measure(const ModulePicture& module) {
  size_t longest = 3;
  for (const std::string& samples : module.samples) longest = std::max(longest, samples.size());
  for (const auto& stage : module.ranks) {
    for (const std::string& ranks : stage) longest = std::max(longest, ranks.size());
  }
  Box box;
  box.replicas = static_cast<int64_t>(module.ranks[0].size());
  box.cell_width = static_cast<int64_t>(longest) * kCharacter + 10;
  const int64_t cells =
      box.CellX(box.replicas) + static_cast<int64_t>(MoreOf(module).size()) * kCharacter;
  const int64_t title = static_cast<int64_t>(TitleOf(module).size()) * kCharacter;
  box.width = std::max(cells, title) + kCellGap;
  box.height = kTitle + RowsOf(module) * (kLine + kCellGap);
  return box;
}

std::vector<Box> Arrange(const Picture& picture) {
  std::vector<Box> boxes;
  int levels = 0;
  for (const ModulePicture& module : picture.modules) {
    boxes.push_back(Measure(module));
    levels = std::max(levels, module.level + 1);
  }
  int64_t y = kMargin;
  for (int level = 0; level < levels; ++level) {
    int64_t x = kMargin;
    int64_t height = 0;
    for (size_t m = 0; m < boxes.size(); ++m) {
      if (picture.modules[m].level != level) continue;
      boxes[m].x = x;
      boxes[m].y = y;
      x += boxes[m].width + kModuleGap;
      height = std::max(height, boxes[m].height);
    }
    y += height + kLevelGap;
  }
  return boxes;
}

std::string ModuleSvg(const ModulePicture& module, const Box& box) {
  // Links pass behind the title.
  const int64_t title_width = static_cast<int64_t>(TitleOf(module).size()) * kCharacter;
  std::string svg = Rectangle(box.x, box.y, title_width, kLine - 5, "fill=\"#ffffff\"");
  svg += Text(box.x, box.y + 12, TitleOf(module), " font-weight=\"bold\"");
  int64_t y = box.y + kTitle;
  const auto row = [&](absl::string_view label, const std::vector<std::string>& cells,
                       absl::string_view attributes) {
    svg += Text(box.x, y + 14, label);
    for (size_t r = 0; r < cells.size(); ++r) {
      const int64_t x = box.CellX(static_cast<int64_t>(r));
      svg += Rectangle(x, y, box.cell_width, kLine, attributes);
      svg += Text(x + box.cell_width / 2, y + 14, cells[r], " text-anchor=\"middle\"");
    }
    y += kLine + kCellGap;
  };
  if (!module.samples.empty()) {
    row("samples", module.samples, "fill=\"#fdf0d5\" stroke=\"#b07d10\"");
  }
  for (size_t stage = 0; stage < module.ranks.size(); ++stage) {
    row(module.ranks.size() > 1 ? absl::StrCat("stage ", stage) : "ranks", module.ranks[stage],
        "fill=\"#e8eef7\" stroke=\"#456799\"");
  }
  if (module.hidden_replicas > 0) {
    svg += Text(box.CellX(box.replicas), box.y + kTitle + 14, MoreOf(module));
  }
  return svg;
}

std::string EdgeSvg(const EdgePicture& edge, const std::vector<Box>& boxes) {
  const Box& from = boxes[static_cast<size_t>(edge.from)];
  const Box& to = boxes[static_cast<size_t>(edge.to)];
  std::string svg;
  for (size_t to_replica = 0; to_replica < edge.sources.size(); ++to_replica) {
    const int64_t to_x = to.CellX(static_cast<int64_t>(to_replica)) + to.cell_width / 2;
    for (int64_t r = edge.sources[to_replica].begin; r < edge.sources[to_replica].end; ++r) {
      if (r >= from.replicas) break;
      absl::StrAppend(&svg, "<line x1=\"", from.CellX(r) + from.cell_width / 2, "\" y1=\"",
                      from.y + from.height - kCellGap, "\" x2=\"", to_x, "\" y2=\"",
                      to.y + kTitle - 2, "\" marker-end=\"url(#head)\"/>\n");
    }
  }
  return svg;
}

}  // namespace

std::string DrawSvg(const Topology& topology, const DrawOptions& options) {
  const Picture picture = MakePicture(topology, options);
  const std::vector<Box> boxes = Arrange(picture);
  int64_t width = 0;
  int64_t height = 0;
  for (const Box& box : boxes) {
    width = std::max(width, box.x + box.width + kMargin);
    height = std::max(height, box.y + box.height + kMargin);
  }
  std::string svg = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
      "\" viewBox=\"0 0 ", width, " ", height, "\" font-family=\"sans-serif\" font-size=\"12\">\n",
      Rectangle(0, 0, width, height, "fill=\"#ffffff\""),
      "<defs><marker id=\"head\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"4\""
      " orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\" fill=\"#444444\"/></marker></defs>\n",
      "<g stroke=\"#444444\">\n");
  for (const EdgePicture& edge : picture.edges) svg += EdgeSvg(edge, boxes);
  svg += "</g>\n<g fill=\"#222222\">\n";
  for (size_t m = 0; m < boxes.size(); ++m) svg += ModuleSvg(picture.modules[m], boxes[m]);
  return svg + "</g>\n</svg>\n";
}

}  // namespace lockstep::mimo
