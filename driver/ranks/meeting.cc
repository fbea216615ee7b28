#include "driver/ranks/meeting.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "driver/network/bounded_store.h"

namespace lockstep::driver {

Meeting MeetInStore(c10d::Store& store, const std::string& name, int rank,
                    const std::vector<int>& ranks, const std::string& value,
                    std::chrono::milliseconds timeout) {
  const auto key = [&](int of_rank) { return absl::StrCat(name, "/", of_rank); };
  std::vector<std::string> keys;
  for (const int of_rank : ranks) keys.push_back(key(of_rank));
  store.set(key(rank), std::vector<uint8_t>(value.begin(), value.end()));
  Meeting meeting;
  try {
    store.wait(keys, timeout);
  } catch (const StoreIsSilent&) {
    throw;
  } catch (const c10::Error&) {
    for (const int of_rank : ranks) {
      if (!store.check({key(of_rank)})) meeting.absent.push_back(of_rank);
    }
    if (meeting.absent.empty()) throw;
    store.deleteKey(key(rank));
    return meeting;
  }
  for (const std::string& of_rank : keys) meeting.values.push_back(store.get_to_str(of_rank));
  return meeting;
}

}  // namespace lockstep::driver
