#include "driver/ranks/meeting.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "c10/util/Exception.h"
#include "driver/network/bounded_store.h"
#include "driver/ranks/failure.h"

namespace lockstep::driver {
namespace {

using Clock = std::chrono::steady_clock;

// Between looks for scripts that have ended.
constexpr std::chrono::milliseconds kFirstWait(500), kLongestWait(4000);

// Adds the ranks from `begin` to `end` whose key is not there. One question asks for many keys, so
// few absent ones among many are found quickly.
void FindAbsent(c10d::Store& store, const std::vector<int>& ranks,
                const std::vector<std::string>& keys, size_t begin, size_t end,
                std::vector<int>& absent) {
  if (begin == end || store.check({keys.begin() + static_cast<std::ptrdiff_t>(begin),
                                   keys.begin() + static_cast<std::ptrdiff_t>(end)}))
    return;
  if (end - begin == 1) return absent.push_back(ranks[begin]);
  const size_t middle = begin + (end - begin) / 2;
  FindAbsent(store, ranks, keys, begin, middle, absent);
  FindAbsent(store, ranks, keys, middle, end, absent);
}

}  // namespace

Meeting MeetInStore(c10d::Store& store, const std::string& name, int rank,
                    const std::vector<int>& ranks, const std::string& value,
                    std::chrono::milliseconds timeout) {
  const Clock::time_point start = Clock::now();
  const auto key = [&](int of_rank) { return absl::StrCat(name, "/", of_rank); };
  std::vector<std::string> keys;
  for (const int of_rank : ranks) keys.push_back(key(of_rank));
  store.set(key(rank), value);
  const auto find_absent = [&] {
    std::vector<int> absent;
    FindAbsent(store, ranks, keys, 0, ranks.size(), absent);
    return absent;
  };
  Meeting meeting;
  for (std::chrono::milliseconds wait = kFirstWait;; wait = std::min(2 * wait, kLongestWait)) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    const auto left = std::max(timeout - waited, std::chrono::milliseconds(1));
    try {
      store.wait(keys, std::min(left, wait));
      break;
    } catch (const StoreIsSilent&) {
      throw;
    } catch (const c10::Error&) {
      for (const int of_rank : find_absent()) {
        // In this order: a rank may come, and end, between the two.
        if (HasReportedEnd(store, of_rank) && !store.check({key(of_rank)}))
          meeting.ended.push_back(of_rank);
      }
      if (meeting.ended.empty() && left > wait) continue;
      meeting.absent = find_absent();
      if (meeting.absent.empty()) break;  // they have come just now
      store.deleteKey(key(rank));
      return meeting;
    }
  }
  if (value.empty()) {
    meeting.values.resize(ranks.size());
  } else {
    for (const std::string& of_rank : keys) meeting.values.push_back(store.get_to_str(of_rank));
  }
  return meeting;
}

std::string DescribeAbsence(const std::string& what, const Meeting& meeting,
                            std::chrono::milliseconds timeout) {
  if (!meeting.ended.empty()) {
    return absl::StrCat(what, ": rank ", absl::StrJoin(meeting.ended, ", rank "),
                        meeting.ended.size() == 1
                            ? " does not come, because its script has ended"
                            : " do not come, because their scripts have ended");
  }
  return absl::StrCat(what, ": waited ", absl::FormatDuration(absl::FromChrono(timeout)),
                      " for ranks that have not come: ", absl::StrJoin(meeting.absent, ", "));
}

}  // namespace lockstep::driver
