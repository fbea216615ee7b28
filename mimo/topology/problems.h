// One error for all rules that are broken, so that a configuration is mended in one go.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_PROBLEMS_H_
#define LOCKSTEP_MIMO_TOPOLOGY_PROBLEMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep::mimo {

// OK without problems; else InvalidArgument "mimo: <subject>: <problem>", or with several "mimo:
// <subject>: 2 rules are broken:" and a numbered line for each.
absl::Status StatusOf(absl::string_view subject, const std::vector<std::string>& problems);

// "use 9 or 12": the multiples of `unit` around `value`, from 1 * unit on. `unit` is
// positive.
std::string NearestMultiples(int64_t value, int64_t unit);

// "rank 3", "ranks 3 to 7".
std::string RankSpan(int64_t begin, int64_t end);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TOPOLOGY_PROBLEMS_H_
