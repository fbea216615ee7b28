// Finds ranks that wait for each other in a circle, from what each rank was doing.
//
//    // activities[r]: rank r's report, as Activity::Describe returns it
//    std::string text = DescribeCircle(activities);
//    // "Ranks wait for each other in a circle: rank 0 waits for rank 1 in barrier of ranks 0, 1
//    //  (train.lua:7), rank 1 waits for rank 0 in all_reduce {3} of world (train.lua:9). ..."
//
// The failure that this explains. Rank 0 calls a collective of one group, while rank 1 calls one of
// another group that both are in. Neither reaches the other's collective. WaitWatch (wait_watch.h)
// finds most such circles within seconds. This function names a circle in the report of any hang.

#ifndef LOCKSTEP_DRIVER_RANKS_CIRCLE_H_
#define LOCKSTEP_DRIVER_RANKS_CIRCLE_H_

#include <string>
#include <vector>

namespace lockstep::driver {

// Returns the sentence, or "" if no circle is known. A rank waits for the members of a group that
// report neither this collective nor a later one of the group. `activities` has one report for each
// rank of the run, "" if a rank has sent none.
std::string DescribeCircle(const std::vector<std::string>& activities);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_CIRCLE_H_
