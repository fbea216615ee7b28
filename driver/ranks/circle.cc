#include "driver/ranks/circle.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "driver/ranks/waits.h"

namespace lockstep::driver {
namespace {

// A line of a report: "  waits 8.0 s    ranks 0, 1 #3  all_reduce float32 {3}  (train.lua:7)".
struct Call {
  std::string group;  // "ranks 0, 1", "world (sharding.lockstep)"
  int64_t number = 0;
  std::string what;
  std::string place;  // "(train.lua:7)", or ""
  bool waits = false;
};

struct Rank {
  std::vector<Call> calls;
  const Call* waits_in = nullptr;
};

std::optional<Call> ParseLine(absl::string_view line) {
  Call call;
  call.waits = absl::StartsWith(line, "  waits ");
  if (!call.waits && !absl::StartsWith(line, "  done ")) return std::nullopt;
  constexpr size_t kStateColumns = 17;  // as Activity::Describe pads it
  if (line.size() <= kStateColumns) return std::nullopt;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(absl::StripLeadingAsciiWhitespace(line.substr(kStateColumns)),
                     absl::MaxSplits(absl::string_view(" #"), 1));
  if (parts.second.empty()) return std::nullopt;
  const std::vector<absl::string_view> rest = absl::StrSplit(parts.second, absl::string_view("  "));
  call.group = std::string(parts.first);
  if (!absl::SimpleAtoi(rest[0], &call.number)) return std::nullopt;
  call.what = rest.size() > 1 ? std::string(rest[1]) : "";
  call.place = rest.size() > 2 ? std::string(rest.back()) : "";
  return call;
}

// Returns the ranks that take part in a call.
std::set<int> MembersOf(const Call& call, int world_size) {
  std::set<int> members;
  const std::vector<std::string> words = absl::StrSplit(call.what, ' ');
  const bool is_pair = words[0] == "send" || words[0] == "recv";
  if (is_pair || absl::StartsWith(call.group, "ranks ")) {
    // "recv float32 {1} from rank 1, tag 0", "ranks 0, 1 (sharding.pack)"
    std::string list = call.group.substr(0, call.group.find(" ("));
    if (is_pair) {
      const size_t at = call.what.rfind(" rank ");
      if (at == std::string::npos) return {};  // from any rank
      list = call.what.substr(at + 1, call.what.find(',', at) - at - 1);
    }
    for (const absl::string_view part : absl::StrSplit(list, absl::ByAnyChar(" ,"))) {
      int rank = 0;
      if (absl::SimpleAtoi(part, &rank) && rank >= 0 && rank < world_size) members.insert(rank);
    }
  } else if (absl::StartsWith(call.group, "world")) {
    for (int rank = 0; rank < world_size; ++rank) members.insert(rank);
  }
  return members;
}

// Groups of the same ranks have one name: another call of the same number is in another group.
bool HasCome(const Rank& rank, const Call& to) {
  return std::any_of(rank.calls.begin(), rank.calls.end(), [&](const Call& call) {
    const bool is_same = call.number == to.number && call.what == to.what;
    return call.group == to.group && (call.number > to.number || is_same);
  });
}

}  // namespace

std::string DescribeCircle(const std::vector<std::string>& activities) {
  const int world_size = static_cast<int>(activities.size());
  std::vector<Rank> ranks(activities.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const absl::string_view line : absl::StrSplit(activities[r], '\n')) {
      if (std::optional<Call> call = ParseLine(line)) ranks[r].calls.push_back(*std::move(call));
    }
  }
  std::vector<std::vector<int>> awaited(ranks.size());  // that have not come to the rank's call
  for (size_t r = 0; r < ranks.size(); ++r) {
    // The newest comes first: the script's thread is in it.
    const auto waits = std::find_if(ranks[r].calls.begin(), ranks[r].calls.end(),
                                    [](const Call& call) { return call.waits; });
    if (waits == ranks[r].calls.end()) continue;
    ranks[r].waits_in = &*waits;
    const bool is_pair =
        absl::StartsWith(waits->what, "send ") || absl::StartsWith(waits->what, "recv ");
    for (const int member : MembersOf(*waits, world_size)) {
      if (member == static_cast<int>(r)) continue;
      if (is_pair || !HasCome(ranks[static_cast<size_t>(member)], *waits))
        awaited[r].push_back(member);
    }
  }
  const std::vector<int> circle = FindCircleIn(awaited);
  if (circle.empty()) return "";
  std::vector<std::string> waits;
  for (size_t i = 0; i < circle.size(); ++i) {
    const Call& call = *ranks[static_cast<size_t>(circle[i])].waits_in;
    waits.push_back(absl::StrCat("rank ", circle[i], " waits for rank ",
                                 circle[(i + 1) % circle.size()], " in ", call.what, " of ",
                                 call.group, call.place.empty() ? "" : " ", call.place));
  }
  return absl::StrCat("Ranks wait for each other in a circle: ", absl::StrJoin(waits, ", "),
                      ". Ranks that share several groups must call their collectives in the same "
                      "order");
}

}  // namespace lockstep::driver
