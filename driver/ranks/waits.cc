#include "driver/ranks/waits.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep::driver {
namespace {

// A line for the wait, then one for each sequence. Keys and texts hold neither tabs nor newlines.
constexpr char kBetweenFields = '\t';

// Searches depth first from `start`. Returns the ranks of a circle, or nothing. A rank that waits
// for several is stuck as soon as one of them does not come.
std::vector<int> CircleFrom(int start, const std::vector<std::vector<int>>& awaited,
                            std::vector<bool>& seen) {
  std::vector<int> path;
  std::vector<size_t> tried;  // for each rank of the path, the number of its awaited ranks
  const auto enter = [&](int rank) {
    path.push_back(rank);
    tried.push_back(0);
    seen[static_cast<size_t>(rank)] = true;
  };
  enter(start);
  while (!path.empty()) {
    const std::vector<int>& others = awaited[static_cast<size_t>(path.back())];
    if (tried.back() == others.size()) {
      path.pop_back();
      tried.pop_back();
      continue;
    }
    const int next = others[tried.back()++];
    const auto found = std::find(path.begin(), path.end(), next);
    if (found != path.end()) return std::vector<int>(found, path.end());
    if (!seen[static_cast<size_t>(next)]) enter(next);
  }
  return {};
}

bool HasCome(const RankWait& other, const RankWait& to) {
  const auto it = other.come.find(to.awaited);
  if (it != other.come.end()) return it->second >= to.number;
  return !to.known.empty() && other.come.count(to.known) == 0;
}

}  // namespace

std::string FormatWait(const RankWait& wait) {
  const char between[] = {kBetweenFields, '\0'};
  const std::vector<std::string> fields = {wait.awaited, absl::StrCat(wait.number), wait.known,
                                           absl::StrJoin(wait.ranks, ","), wait.text};
  std::string text = absl::StrJoin(fields, between);
  for (const auto& [key, number] : wait.come) absl::StrAppend(&text, "\n", key, between, number);
  return text;
}

std::optional<RankWait> ParseWait(const std::string& text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  const std::vector<absl::string_view> fields = absl::StrSplit(lines[0], kBetweenFields);
  RankWait wait;
  if (fields.size() != 5 || !absl::SimpleAtoi(fields[1], &wait.number)) return std::nullopt;
  wait.awaited = std::string(fields[0]);
  wait.known = std::string(fields[2]);
  wait.text = std::string(fields[4]);
  for (const absl::string_view rank : absl::StrSplit(fields[3], ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(rank, &wait.ranks.emplace_back())) return std::nullopt;
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<absl::string_view> sequence = absl::StrSplit(lines[i], kBetweenFields);
    if (sequence.size() != 2 ||
        !absl::SimpleAtoi(sequence[1], &wait.come[std::string(sequence[0])]))
      return std::nullopt;
  }
  return wait;
}

std::vector<int> FindCircleIn(const std::vector<std::vector<int>>& awaited) {
  std::vector<bool> seen(awaited.size(), false);
  for (size_t start = 0; start < awaited.size(); ++start) {
    if (seen[start]) continue;
    std::vector<int> circle = CircleFrom(static_cast<int>(start), awaited, seen);
    if (!circle.empty()) return circle;
  }
  return {};
}

std::vector<int> FindCircle(const std::vector<std::optional<RankWait>>& waits) {
  const auto size = static_cast<int>(waits.size());
  std::vector<std::vector<int>> awaited(waits.size());
  for (int r = 0; r < size; ++r) {
    const std::optional<RankWait>& wait = waits[static_cast<size_t>(r)];
    if (!wait.has_value()) continue;
    for (const int other : wait->ranks) {
      if (other == r || other < 0 || other >= size) continue;
      // A rank that does not wait may come yet.
      const std::optional<RankWait>& theirs = waits[static_cast<size_t>(other)];
      if (theirs.has_value() && !HasCome(*theirs, *wait))
        awaited[static_cast<size_t>(r)].push_back(other);
    }
  }
  return FindCircleIn(awaited);
}

std::string DescribeWaits(const std::vector<int>& circle,
                          const std::vector<std::optional<RankWait>>& waits) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < circle.size(); ++i) {
    parts.push_back(absl::StrCat("rank ", circle[i], " waits for rank ",
                                 circle[(i + 1) % circle.size()], " in ",
                                 waits[static_cast<size_t>(circle[i])]->text));
  }
  return absl::StrCat(absl::StrJoin(parts, "; "),
                      "; none of them will come. Ranks that share several groups must call their "
                      "collectives in the same order");
}

}  // namespace lockstep::driver
