// The first failure of a run, told to every rank within moments.
//
//   ReportFailure(*store, "rank 1: train.lua:3: ...");        // the rank that fails
//   WatchForFailure(store, [](const std::string& text) { ... });  // every rank, once
//
// A rank that dies alone leaves the others waiting in a collective until a timeout that names
// nothing. So the failing rank writes one key, the first writer wins, and a thread in every rank
// waits for that key.

#ifndef LOCKSTEP_DRIVER_FAILURE_H_
#define LOCKSTEP_DRIVER_FAILURE_H_

#include <functional>
#include <optional>
#include <string>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::driver {

// Makes `text` the run's failure unless one is known; returns the run's failure. Any thread.
std::string ReportFailure(c10d::Store& store, const std::string& text);

// The run's failure so far.
std::optional<std::string> KnownFailure(c10d::Store& store);

// Calls `on_failure` once, on a thread of its own, when the run has failed or the store is lost
// (then with a text that says so). The thread lives until the process ends.
void WatchForFailure(const c10::intrusive_ptr<c10d::Store>& store,
                     std::function<void(const std::string& text)> on_failure);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FAILURE_H_
