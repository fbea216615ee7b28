// Lets one process at a time build in a cache folder.
//
//    absl::StatusOr<CacheLock> lock = CacheLock::Take("/home/you/.cache/lockstep/index");
//    if (!lock.ok()) return lock.status();  // its holder is stopped, or its disk does not answer
//    ...                                    // builds; others wait
//
// The failure this prevents. flock(2) waits as long as the lock is held. A holder that is stopped
// (Ctrl-Z, a debugger) or that reads from a disk which does not answer holds it for ever. Every
// later run then waits and prints nothing. Here the holder shows that it works: while its thread
// uses CPU time, it renews the time of the lock file. Whoever waits gives up when that has stood
// still for its patience. A holder that works may take hours.
//
// A folder that may not be written, or whose file system has no locks, is used without one. Several
// processes may then build the same, and each puts a complete file in place of the other's.

#ifndef LOCKSTEP_DRIVER_DATA_CACHE_LOCK_H_
#define LOCKSTEP_DRIVER_DATA_CACHE_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep::data {

class CacheLock {
 public:
  // Longer than a minute, for which NFS may show the old time of a file.
  static constexpr absl::Duration kPatience = absl::Minutes(2);

  // Takes the lock of the folder for the calling thread, and holds it while the object lives.
  // Blocks while another holder works. Returns DeadlineExceeded, with the holder's process, if it
  // has not worked for `patience`.
  static absl::StatusOr<CacheLock> Take(const std::string& folder,
                                        absl::Duration patience = kPatience);

  CacheLock(CacheLock&&) noexcept;
  CacheLock& operator=(CacheLock&&) noexcept;
  ~CacheLock();

 private:
  class Heartbeat;
  explicit CacheLock(std::unique_ptr<Heartbeat> heartbeat);

  std::unique_ptr<Heartbeat> heartbeat_;  // nullptr without a lock
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_CACHE_LOCK_H_
