// Ranks as threads of one process, for tests: each thread runs `body` with its own Collective.

#ifndef LOCKSTEP_SHARDING_TESTING_THREAD_COLLECTIVE_H_
#define LOCKSTEP_SHARDING_TESTING_THREAD_COLLECTIVE_H_

#include <functional>

#include "sharding/agreement/collective.h"

namespace lockstep::sharding {

// Runs body(collective) in `size` threads and returns when all have ended. If a rank does not join
// a gathering within `timeout_s` seconds, that gathering and all later ones return DeadlineExceeded
// on the others.
void RunAsThreads(int size, const std::function<void(Collective&)>& body, double timeout_s = 5);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_TESTING_THREAD_COLLECTIVE_H_
