// Samples for tests of prepare.h.

#ifndef LOCKSTEP_BATCHING_TESTING_TEST_SAMPLES_H_
#define LOCKSTEP_BATCHING_TESTING_TEST_SAMPLES_H_

#include <cstdint>
#include <vector>

#include "batching/prepare.h"

namespace lockstep::batching {

// Tokens `first`, `first` + 1, ... with a loss on all but the first.
TensorSample Text(int64_t tokens, int64_t first = 100);

// One text token, then for each image its placeholders (one for 4 patches) and one text token more.
// Pixels are float [patches, pixels], no two alike.
TensorSample Images(const std::vector<int64_t>& patches, int64_t first = 100, int64_t pixels = 3);

// A Text of each of these lengths.
std::vector<TensorSample> Texts(const std::vector<int64_t>& lengths);

PrepareOptions With(int64_t seq_len, int ranks, Balance balance = Balance::kLockstep);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_TESTING_TEST_SAMPLES_H_
