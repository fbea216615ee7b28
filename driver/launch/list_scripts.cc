#include "driver/launch/list_scripts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace lockstep::driver {
namespace {

// Reads the first sentence of the comment at the top, or "". Returns false for a module.
bool ReadSummary(const std::filesystem::path& path, std::string& summary) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line) && absl::StartsWith(line, "--")) {
    if (absl::StartsWith(line, "---")) return false;
    if (absl::StartsWith(line, "--[")) break;
    const std::string text(absl::StripPrefix(absl::StripPrefix(line, "--"), " "));
    if (text.empty()) break;
    absl::StrAppend(&summary, summary.empty() ? "" : " ", text);
    const size_t end = summary.find(". ");
    if (end != std::string::npos) summary.resize(end + 1);
    if (absl::EndsWith(summary, ".")) break;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> ListScripts(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> scripts;
  std::error_code error;
  size_t width = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::string summary;
    if (entry.path().extension() != ".lua" || !ReadSummary(entry.path(), summary)) continue;
    scripts.emplace_back(entry.path().string(), summary);
    width = std::max(width, scripts.back().first.size());
  }
  if (error || scripts.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--list: ", error ? "there is no folder" : "there is no script in", " \"",
                     folder, "\"; name the folder, as in --list scripts"));
  }
  std::sort(scripts.begin(), scripts.end());
  std::string text;
  for (const auto& [path, summary] : scripts) {
    absl::StrAppend(&text, path, std::string(summary.empty() ? 0 : width - path.size() + 2, ' '),
                    summary, "\n");
  }
  return text;
}

}  // namespace lockstep::driver
