// Buffers that the units of a sharded model use by turns.
//
// A model of many equal units needs two or three buffers at a time, at any depth. So memory is
// constant after the first step, and the allocator does not run in between.
//
// Thread: used by one thread. On a device, buffers are used on one stream.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_SLOT_POOL_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_SLOT_POOL_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Device.h"

namespace lockstep::sharding {

class SlotPool {
 public:
  explicit SlotPool(c10::Device device) : device_(device) {}

  // Sets the sizes of new buffers, in ascending order. A new buffer has the first of them that is
  // enough, so that other units can use it, too; or its own size if none is.
  void set_sizes(std::vector<int64_t> sizes) { sizes_ = std::move(sizes); }

  // Returns a 1-D uint8 tensor of at least `bytes` elements: the smallest free one, or a new one.
  at::Tensor Acquire(int64_t bytes);
  void Release(at::Tensor slot);

  // Frees the buffers that nobody uses.
  void Trim();

  c10::Device device() const { return device_; }
  int64_t bytes() const { return bytes_; }            // of all buffers, used or free
  int64_t peak_bytes() const { return peak_bytes_; }  // the most so far

 private:
  c10::Device device_;
  std::vector<int64_t> sizes_;
  int64_t bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::vector<at::Tensor> free_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_SLOT_POOL_H_
