// One error for all broken rules, so that a user can fix a configuration in one pass.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_PROBLEMS_H_
#define LOCKSTEP_MIMO_TOPOLOGY_PROBLEMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep::mimo {

// Returns OK if there are no problems. For one problem returns InvalidArgument "mimo: <subject>:
// <problem>". For several returns "mimo: <subject>: 2 rules are broken:" and a numbered line for
// each.
absl::Status StatusOf(absl::string_view subject, const std::vector<std::string>& problems);

// Returns "use 9 or 12": the multiples of `unit` next to `value`, at least 1 * unit. `unit` is
// positive.
std::string NearestMultiples(int64_t value, int64_t unit);

// Returns "rank 3" or "ranks 3 to 7".
std::string RankSpan(int64_t begin, int64_t end);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TOPOLOGY_PROBLEMS_H_
