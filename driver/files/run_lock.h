// Locks a run's folder, so that a second run cannot mix its metrics and states with the first's.
//
//    absl::StatusOr<RunLock> lock = LockRun("runs/digits");
//    if (!lock.ok()) Warn(lock.status());                      // the folder cannot be locked
//    else if (lock->is_held_by_another) Fail(lock->holder);    // "process 4711 on node3"
//
// The lock is flock(2)'s, on the folder itself and on the file run.lock in it. It ends with the
// process that took it, however that ends; run.lock stays and does no harm. The folder's lock holds
// even if somebody deletes run.lock. The file's lock is there for file systems that cannot lock
// folders (NFS), and it names the holder.
//
// Thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_RUN_LOCK_H_
#define LOCKSTEP_DRIVER_FILES_RUN_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep::driver {

struct RunLock {
  bool is_held_by_another = false;
  std::string holder;  // of another's lock, "process 4711 on node3"; "" if it left no name
};

// Returns "process 4711 on node3" for this process.
std::string DescribeProcess();

// Locks `folder` for this process until it ends. A second call for the same folder returns the lock
// that this process has. Returns Unavailable, with the reason, if the folder cannot be locked.
absl::StatusOr<RunLock> LockRun(const std::string& folder);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_RUN_LOCK_H_
