#include "batching/balance/first_fit.h"

#include <algorithm>
#include <utility>

namespace lockstep::batching {

size_t FirstFit::Place(int64_t size) {
  if (num_bins_ == 0 || room_[1] < size) Append();
  size_t node = 1;
  while (node < num_leaves_) node = room_[2 * node] >= size ? 2 * node : 2 * node + 1;
  const size_t bin = node - num_leaves_;
  SetRoom(bin, room_[node] - size);
  return bin;
}

// Twice the leaves whenever they run out: O(1) for each bin on the whole.
void FirstFit::Append() {
  if (num_bins_ == num_leaves_) {
    const std::vector<int64_t> old = std::move(room_);
    const size_t old_leaves = num_leaves_;
    num_leaves_ = std::max<size_t>(1, 2 * num_leaves_);
    room_.assign(2 * num_leaves_, -1);
    for (size_t bin = 0; bin < num_bins_; ++bin) room_[num_leaves_ + bin] = old[old_leaves + bin];
    for (size_t node = num_leaves_ - 1; node >= 1; --node)
      room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
  }
  SetRoom(num_bins_++, capacity_);
}

void FirstFit::SetRoom(size_t leaf, int64_t room) {
  size_t node = num_leaves_ + leaf;
  room_[node] = room;
  for (node /= 2; node >= 1; node /= 2)
    room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
}

}  // namespace lockstep::batching
