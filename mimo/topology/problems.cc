#include "mimo/topology/problems.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep::mimo {

absl::Status StatusOf(absl::string_view subject, const std::vector<std::string>& problems) {
  if (problems.empty()) return absl::OkStatus();
  if (problems.size() == 1) {
    return absl::InvalidArgumentError(absl::StrCat("mimo: ", subject, ": ", problems[0]));
  }
  std::string message =
      absl::StrCat("mimo: ", subject, ": ", problems.size(), " rules are broken:");
  for (size_t i = 0; i < problems.size(); ++i) {
    absl::StrAppend(&message, "\n  ", i + 1, ". ", problems[i]);
  }
  return absl::InvalidArgumentError(message);
}

std::string NearestMultiples(int64_t value, int64_t unit) {
  const int64_t below = std::max<int64_t>(value, 0) / unit * unit;
  if (below == 0) return absl::StrCat("use ", unit);
  return absl::StrCat("use ", below, " or ", below + unit);
}

std::string RankSpan(int64_t begin, int64_t end) {
  if (end - begin == 1) return absl::StrCat("rank ", begin);
  return absl::StrCat("ranks ", begin, " to ", end - 1);
}

}  // namespace lockstep::mimo
