// A rank's connection to the keeper of its machine.
//
//    absl::StatusOr<KeeperClient> keeper = KeeperClient::Connect(name);
//    if (!keeper.ok()) keeper = KeeperClient::Start(program, name, /*watch=*/launcher);
//    keeper->Put({.step = 100, .owner = rank, .world = world, .bytes = bytes, .crc32 = crc32},
//    slab.fd());
//
// Each call waits for the keeper's answer, and returns Unavailable if the keeper is gone. Thread:
// one.

#ifndef LOCKSTEP_DRIVER_KEEP_CLIENT_H_
#define LOCKSTEP_DRIVER_KEEP_CLIENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "driver/keep/message.h"

namespace lockstep::driver {

class KeeperClient {
 public:
  // Returns NotFound if there is no keeper of that name.
  static absl::StatusOr<KeeperClient> Connect(const std::string& name);

  // Starts a keeper unless another process just did, and connects. `watch`: the process with which
  // the keeper ends; 0: it ends after `idle_s` seconds without a connection.
  static absl::StatusOr<KeeperClient> Start(const std::string& program, const std::string& name,
                                            int watch, int idle_s);

  KeeperClient(KeeperClient&& other) noexcept;
  KeeperClient& operator=(KeeperClient&& other) noexcept;
  ~KeeperClient();

  uint64_t number() const {
    return number_;
  }  // of the keeper: ranks that share one know it by that

  // The newest start of the run that the keeper knew when this client connected; 0: none.
  int64_t newest_start() const { return newest_start_; }

  // Says to which start of the run this client belongs. From then on the keeper refuses what ranks
  // of earlier starts put or drop: they get FailedPrecondition. So does this call, if the keeper
  // knows a newer start.
  absl::Status Begin(int64_t start);

  // Hands over memory, which stays with the keeper whatever becomes of this process.
  absl::Status Put(const Snapshot& snapshot, int fd);

  absl::Status Drop(int owner, int64_t step);
  absl::StatusOr<std::vector<Snapshot>> List();

  // Returns a descriptor of the memory, which the caller owns; NotFound if the keeper has no such.
  absl::StatusOr<int> Get(int owner, int64_t step);

 private:
  explicit KeeperClient(int socket) : socket_(socket) {}

  absl::StatusOr<Received> Ask(Request request, const Snapshot& snapshot, int fd);

  int socket_ = -1;
  uint64_t number_ = 0;
  int64_t newest_start_ = 0;
  int64_t start_ = 0;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_KEEP_CLIENT_H_
