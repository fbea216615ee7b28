// Texts of any length from all ranks, over a collective of equal sizes.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_GATHER_TEXTS_H_
#define LOCKSTEP_SHARDING_AGREEMENT_GATHER_TEXTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

// Collective: every rank calls this; blocks until all have. In the order of ranks, the same on
// every rank. Unavailable, or what the collective says, where a rank is lost.
absl::StatusOr<std::vector<std::string>> GatherTexts(Collective& collective,
                                                     const std::string& text);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_GATHER_TEXTS_H_
