// Ranks that wait for each other in the run's store, before there is a group to wait in.
//
//    const Meeting meeting = MeetInStore(*store, "control/0,2/0", rank, {0, 2}, address, timeout);
//    if (!meeting.absent.empty()) ...  // names ranks, where a backend would name one of its keys

#ifndef LOCKSTEP_DRIVER_RANKS_MEETING_H_
#define LOCKSTEP_DRIVER_RANKS_MEETING_H_

#include <chrono>
#include <string>
#include <vector>

#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

struct Meeting {
  std::vector<int> absent;          // the ranks that have not come in time
  std::vector<int> ended;           // those of them whose scripts have ended: they never come
  std::vector<std::string> values;  // one of each rank, in the order of `ranks`, if none is absent
};

// Writes `value` for this rank and waits, at most `timeout`, until all of `ranks` have written
// theirs. Stops waiting if the script of one that has not come has ended, as ReportEnd says in the
// same store. If some stay away, it deletes this rank's value: ranks that come later see that it
// left.
// Use each name once, or again after a failure. Throws StoreIsSilent, or c10::Error if the store is
// lost. Collective over `ranks`.
Meeting MeetInStore(c10d::Store& store, const std::string& name, int rank,
                    const std::vector<int>& ranks, const std::string& value,
                    std::chrono::milliseconds timeout);

// Returns why ranks have not come to `what`: "meeting of world: rank 1 does not come, because its
// script has ended".
std::string DescribeAbsence(const std::string& what, const Meeting& meeting,
                            std::chrono::milliseconds timeout);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_MEETING_H_
