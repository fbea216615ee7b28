#include "driver/failure.h"

#include <chrono>
#include <exception>
#include <thread>
#include <vector>

namespace lockstep::driver {
namespace {

constexpr char kFailureKey[] = "lockstep/failure";

std::string ToString(const std::vector<uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); }

}  // namespace

std::string ReportFailure(c10d::Store& store, const std::string& text) {
  return ToString(store.compareSet(kFailureKey, {}, std::vector<uint8_t>(text.begin(), text.end())));
}

std::optional<std::string> KnownFailure(c10d::Store& store) {
  if (!store.check({kFailureKey})) return std::nullopt;
  return ToString(store.get(kFailureKey));
}

void WatchForFailure(const c10::intrusive_ptr<c10d::Store>& store,
                     std::function<void(const std::string& text)> on_failure) {
  // A connection of its own: a client that waits blocks all others that share it.
  std::thread([store = store->clone(), on_failure = std::move(on_failure)] {
    std::string text;
    try {
      store->wait({kFailureKey}, std::chrono::hours(24 * 365));
      text = ToString(store->get(kFailureKey));
    } catch (const std::exception&) {
      text = "the store was lost: the process that hosts it (the launcher, or rank 0) is gone";
    }
    on_failure(text);
  }).detach();
}

}  // namespace lockstep::driver
