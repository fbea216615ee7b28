#include "driver/ranks/signs_of_life.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "driver/files/run_lock.h"

namespace lockstep::driver {
namespace {

std::string SignKey(int rank) { return absl::StrCat("lockstep/sign_of_life/", rank); }

// "12 process 4711 on node3", or "".
std::string SignOf(c10d::Store& store, int rank) {
  const std::string key = SignKey(rank);
  return store.check({key}) ? store.get_to_str(key) : "";
}

void GiveSign(c10d::Store& store, int rank, int64_t number) {
  store.set(SignKey(rank), absl::StrCat(number, " ", DescribeProcess()));
}

}  // namespace

void GiveSignsOfLife(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                     std::chrono::milliseconds interval) {
  GiveSign(*store, rank, 0);
  // A connection of its own: a client that waits blocks all others that share it.
  std::thread([store = store->clone(), rank, interval] {
    for (int64_t number = 1;; ++number) {
      std::this_thread::sleep_for(interval);
      try {
        GiveSign(*store, rank, number);
      } catch (const std::exception&) {
        // The store is lost or silent: that is said where a rank waits, or fails.
      }
    }
  }).detach();
}

std::string DescribeProcessOf(c10d::Store& store, int rank) {
  const std::string sign = SignOf(store, rank);
  return sign.substr(sign.find(' ') + 1);
}

std::optional<std::string> Silence::Look(c10d::Store& store, const std::vector<int>& ranks,
                                         Clock::time_point now) {
  const auto since = now - last_look_;
  if (since < between_looks()) return std::nullopt;
  last_look_ = now;
  std::vector<std::string> silent;
  Clock::duration longest(0);
  for (const int rank : ranks) {
    Seen& seen = seen_[rank];
    std::string sign = SignOf(store, rank);
    if (sign.empty() || sign != seen.sign) {
      seen = {std::move(sign)};
      continue;
    }
    seen.silent_for += std::min<Clock::duration>(since, between_looks());
    if (seen.silent_for <= limit_) continue;
    silent.push_back(absl::StrCat("rank ", rank, " (", DescribeProcessOf(store, rank), ")"));
    longest = std::max(longest, seen.silent_for);
  }
  if (silent.empty()) return std::nullopt;
  const std::chrono::duration<double> seconds = longest;
  return absl::StrCat(absl::StrJoin(silent, ", "), " did not end and gave no sign of life for ",
                      absl::StrFormat("%.1f", seconds.count()),
                      " s: stopped, dead, or the machine is lost; --timeout sets how long to wait");
}

}  // namespace lockstep::driver
