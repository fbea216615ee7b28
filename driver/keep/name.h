// The name under which ranks find the keepers of their run.

#ifndef LOCKSTEP_DRIVER_KEEP_NAME_H_
#define LOCKSTEP_DRIVER_KEEP_NAME_H_

#include <string>

namespace lockstep::driver {

// Returns the name for the run in this folder, or "" if the folder cannot be written. A file
// keep.id in it has a random number. So a new run in a folder that was emptied never finds the
// snapshots of the old.
std::string KeeperName(const std::string& run_dir);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_KEEP_NAME_H_
