// Gathers texts of any length from all ranks. A Collective itself gathers an equal number of bytes.
//
//    absl::StatusOr<std::vector<std::string>> texts = GatherTexts(collective, "rank 0: ok");
//    // texts: one for each rank, in order
//
// It costs two gatherings: first the lengths, then the texts, padded to the longest. Use it for
// reports, not in every step. Thread: as for the collective.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_GATHER_TEXTS_H_
#define LOCKSTEP_SHARDING_AGREEMENT_GATHER_TEXTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

// Returns the text of each rank, in the order of ranks, the same on every rank. Collective: every
// rank calls this; it blocks until all have. Returns Unavailable, or the collective's error, if a
// rank is lost.
absl::StatusOr<std::vector<std::string>> GatherTexts(Collective& collective,
                                                     const std::string& text);

// Returns the first 5 lines in which the gathered texts differ, each as "\n  rank R: LINE" for
// every rank, and sets `count` to the number of all such lines.
std::string DifferentLines(const Collective& collective, const std::vector<std::string>& texts,
                           int* count);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_GATHER_TEXTS_H_
