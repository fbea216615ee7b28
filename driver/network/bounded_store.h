// A store whose calls always end, even if the process that hosts it is stopped or its machine is
// lost.
//
//    auto store = NewBoundedStore("node1:29500", timeout, [=] {
//      return c10::make_intrusive<c10d::TCPStore>("node1", options);
//    });
//    store->check({"key"});  // throws StoreIsSilent if the host has not answered in 3 s
//
// c10d's client sends a request and then reads the answer without a limit. `wait` has a limit, but
// asks the host to confirm that the time is up. A rank that hangs there can neither end nor report.
//
// Here each such call runs on its own thread, which costs about 50 us. The caller gives up when the
// call's own time and kTimeToAnswer have passed. After that, calls fail at once until the host has
// answered the abandoned call. `set` expects no answer and runs on the caller's thread.
//
// As thread-safe as the store inside.

#ifndef LOCKSTEP_DRIVER_NETWORK_BOUNDED_STORE_H_
#define LOCKSTEP_DRIVER_NETWORK_BOUNDED_STORE_H_

#include <chrono>
#include <functional>
#include <string>

#include "c10/util/Exception.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// Thrown if the host of the store does not answer. The message says where the host should be.
class StoreIsSilent : public c10::DistStoreError {
 public:
  using DistStoreError::DistStoreError;
};

// The time that a living host may take to answer.
inline constexpr std::chrono::milliseconds kTimeToAnswer(3000);

// Calls `connect`, which may take `timeout`, and returns its store with bounded calls. `where`
// names the host in messages. Throws what `connect` throws, or StoreIsSilent.
c10::intrusive_ptr<c10d::Store> NewBoundedStore(
    const std::string& where, std::chrono::milliseconds timeout,
    const std::function<c10::intrusive_ptr<c10d::Store>()>& connect,
    std::chrono::milliseconds time_to_answer = kTimeToAnswer);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_NETWORK_BOUNDED_STORE_H_
