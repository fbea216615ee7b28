// Shared memory without a name: it is gone when no process has it open any more, whatever ended
// them.
//
//    absl::StatusOr<Slab> slab = Slab::Make(1 << 20);
//    std::memcpy(slab->data(), bytes, size);
//    client.Put(snapshot, slab->fd());   // another process has it now, too
//
// Why not a file in /dev/shm: a process that is killed leaves it there. Thread: used by one thread.

#ifndef LOCKSTEP_DRIVER_KEEP_SLAB_H_
#define LOCKSTEP_DRIVER_KEEP_SLAB_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep::driver {

class Slab {
 public:
  // Reserves `bytes` of memory. Returns ResourceExhausted if there is not so much.
  static absl::StatusOr<Slab> Make(uint64_t bytes);

  // Takes the memory behind `fd`, which another process made. Owns `fd`, also after an error.
  static absl::StatusOr<Slab> Take(int fd);

  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&& other) noexcept;
  ~Slab();

  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  std::string path() const;  // under which this process can open it as a regular file

 private:
  Slab(int fd, char* data, uint64_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}

  int fd_ = -1;
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_KEEP_SLAB_H_
