#include "driver/ranks/watchdog/wait_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

constexpr char kCountKey[] = "lockstep/waits";  // of ranks whose wait is in the store

// "<beat> <wait>", or "" once the wait is over.
std::string WaitKey(int rank) { return absl::StrCat("lockstep/wait/", rank); }

struct Published {
  int64_t beat = 0;
  std::optional<RankWait> wait;
};

Published ReadWait(c10d::Store& store, int rank) {
  const std::string key = WaitKey(rank);
  if (!store.check({key})) return {};
  const std::string text = store.get_to_str(key);
  const size_t space = text.find(' ');
  Published read;
  if (space == std::string::npos || !absl::SimpleAtoi(text.substr(0, space), &read.beat)) return {};
  read.wait = ParseWait(text.substr(space + 1));
  return read;
}

}  // namespace

WaitWatch::WaitWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                     std::function<std::optional<RankWait>()> find_wait)
    : store_(std::move(store)),
      rank_(rank),
      world_size_(world_size),
      find_wait_(std::move(find_wait)),
      // With a thousand ranks rank 0 reads a few hundred waits a second.
      between_(std::max(200, 4 * world_size)) {}

std::optional<std::string> WaitWatch::Look(Clock::time_point now) {
  Publish(now);
  if (rank_ != 0 || now - read_ < between_) return std::nullopt;
  read_ = now;
  if (store_->add(kCountKey, 0) < 2) {
    suspected_.reset();
    return std::nullopt;
  }
  return Read();
}

void WaitWatch::Publish(Clock::time_point now) {
  const std::optional<RankWait> wait = find_wait_();
  if (!wait.has_value()) {
    if (std::exchange(is_published_, false)) {
      store_->set(WaitKey(rank_), std::string());
      store_->add(kCountKey, -1);
    }
    return;
  }
  if (is_published_ && now - published_ < between_) return;
  published_ = now;
  store_->set(WaitKey(rank_), absl::StrCat(++beat_, " ", FormatWait(*wait)));
  if (!std::exchange(is_published_, true)) store_->add(kCountKey, 1);
}

std::optional<std::string> WaitWatch::Read() {
  std::vector<std::optional<RankWait>> waits;
  std::vector<int64_t> beats;
  for (int rank = 0; rank < world_size_; ++rank) {
    Published read = ReadWait(*store_, rank);
    waits.push_back(std::move(read.wait));
    beats.push_back(read.beat);
  }
  Seen seen;
  seen.circle = FindCircle(waits);
  for (const int rank : seen.circle) {
    RankWait wait = *waits[static_cast<size_t>(rank)];
    wait.come.clear();
    seen.waits.push_back(FormatWait(wait));
    seen.beats.push_back(beats[static_cast<size_t>(rank)]);
  }
  if (seen.circle.empty()) {
    suspected_.reset();
    return std::nullopt;
  }
  if (!suspected_.has_value() || suspected_->circle != seen.circle ||
      suspected_->waits != seen.waits) {
    suspected_ = std::move(seen);
    return std::nullopt;
  }
  for (size_t i = 0; i < seen.beats.size(); ++i) {
    if (seen.beats[i] <= suspected_->beats[i]) return std::nullopt;
  }
  return DescribeWaits(seen.circle, waits);
}

}  // namespace lockstep::driver
