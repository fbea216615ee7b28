#include "sharding/fully_shard/slot_pool.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/empty.h"

namespace lockstep::sharding {

at::Tensor SlotPool::Acquire(int64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->numel() >= bytes && (best == free_.end() || it->numel() < best->numel())) best = it;
  }
  if (best != free_.end()) {
    at::Tensor slot = std::move(*best);
    free_.erase(best);
    return slot;
  }
  const auto common = std::lower_bound(sizes_.begin(), sizes_.end(), bytes);
  const int64_t size = common == sizes_.end() ? bytes : *common;
  bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device_));
}

void SlotPool::Release(at::Tensor slot) { free_.push_back(std::move(slot)); }

void SlotPool::Trim() {
  for (const at::Tensor& slot : free_) bytes_ -= slot.numel();
  free_.clear();
}

}  // namespace lockstep::sharding
