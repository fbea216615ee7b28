// The process groups of a test's ranks, over Gloo on 127.0.0.1. In a strict twin of the test
// (tests/strict/strict.bzl) all of them are on the strict backend.
//
//    TEST(AllReduce, SumsOverRanks) {
//      const std::optional<Rank> rank = OnRanks(2);
//      if (!rank.has_value()) return;
//      const GlooWorld world = MeetOverGloo(*rank);
//
//      ...  // world.group->allreduce(...)
//    }

#ifndef LOCKSTEP_TESTS_SUPPORT_GLOO_WORLD_H_
#define LOCKSTEP_TESTS_SUPPORT_GLOO_WORLD_H_

#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "tests/support/ranks.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::tests {

struct GlooWorld {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

// Collective: every rank that OnRanks started calls this once. Its collectives fail after 45 s:
// before the test's own time is up, and later than a rank takes to start from a cold disk.
GlooWorld MeetOverGloo(const Rank& rank);

// Makes a group of some ranks of the world, on the strict backend where `strict`. Null where this
// rank is not among them, or alone. Collective over `ranks`; a name is used once for them.
c10::intrusive_ptr<c10d::ProcessGroup> NewGlooGroup(const GlooWorld& world, const std::string& name,
                                                    const std::vector<int>& ranks,
                                                    bool strict = false);

// Returns the backend of such a group, for a ProcessGroup of the caller's own. `position` is this
// rank's in `ranks`.
c10::intrusive_ptr<c10d::Backend> NewGlooBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::string& name, int position,
                                                 const std::vector<int>& ranks,
                                                 bool strict = false);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_GLOO_WORLD_H_
