// Keeps the snapshots of a run on one machine, while its ranks end and are started again.
//
// It holds the last two of each rank, so that one is whole while the other is written. A snapshot
// is there as a whole or not at all: a rank hands it over when it is written. The keeper ends and
// frees the memory in three cases: all snapshots were dropped and no rank is connected; the process
// that it watches has ended; or no rank was connected for idle_s seconds.

#ifndef LOCKSTEP_DRIVER_KEEP_KEEPER_H_
#define LOCKSTEP_DRIVER_KEEP_KEEPER_H_

#include <string>

namespace lockstep::driver {

struct KeeperOptions {
  std::string name;   // under which ranks find it
  int watch = 0;      // process with which it ends; 0: none
  int idle_s = 600;   // seconds without a connection after which it ends
  int ready_fd = -1;  // gets a byte when ranks can connect, and is closed
};

// Serves until the keeper ends. Returns the exit code: 1 if the name is taken or cannot be had.
int Keep(const KeeperOptions& options);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_KEEP_KEEPER_H_
