// A pool of host memory for copies of tensors. It holds as much as the copies need, and makes no
// system allocation after the first steps.
//
// The failure this prevents: PyTorch's allocator of pinned memory rounds each request up to a power
// of two, 1.78 times the requested bytes in a measured case. This pool allocates the requested
// size, keeps memory that is returned, and splits it for smaller requests:
//
//    HostMemoryPool pool(PageableMemory());
//    absl::StatusOr<HostMemoryPool::Block> block = pool.Take(bytes);
//    ... copy to block->data() ...
//    block->ReturnWhen([event] { return event->query(); });   // not before the device is done
//
// HostOffload (host_offload.h) makes its own pools. Use a pool yourself for copies of your own.
//
// A Block returns to its pool when it is destroyed, also after an exception. It may outlive the
// HostMemoryPool: the memory is released with the last block. The pool releases free
// memory that no request could use before it allocates more. If each allocation is expensive, small
// requests share slabs, and the last slab may be partly empty.
//
// Thread-safe.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_MEMORY_POOL_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_MEMORY_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/host_memory.h"

namespace lockstep::checkpoint {

using base::HostMemory;
using base::PageableMemory;

class HostMemoryPool {
  struct Segment;
  struct State;

 public:
  // A piece of the pool's memory, aligned to 64 bytes. Movable; an empty block has 0 bytes.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept;
    ~Block() { Return(); }

    void* data() const { return data_; }
    int64_t bytes() const { return bytes_; }  // 0: holds nothing

    // Sets a condition for reuse: the pool hands the memory to another caller only after
    // is_finished() has returned true, because a copy may still use it. The pool calls it on the
    // threads that call Take. An exception counts as false.
    void ReturnWhen(std::function<bool()> is_finished) { is_finished_ = std::move(is_finished); }

   private:
    friend class HostMemoryPool;
    void Return();
    std::shared_ptr<State> pool_;
    Segment* segment_ = nullptr;
    void* data_ = nullptr;
    int64_t bytes_ = 0;
    std::function<bool()> is_finished_;
  };

  // Creates an empty pool, which never allocates more than max_bytes at a time.
  explicit HostMemoryPool(HostMemory memory, int64_t max_bytes = INT64_MAX);
  HostMemoryPool(const HostMemoryPool&) = delete;
  HostMemoryPool& operator=(const HostMemoryPool&) = delete;

  // Returns a block of `bytes` bytes, at least 1. Returns ResourceExhausted if the machine has no
  // more memory, and OutOfRange if the pool would exceed max_bytes.
  absl::StatusOr<Block> Take(int64_t bytes);

  struct Usage {
    int64_t bytes = 0;        // allocated: in use or free
    int64_t peak_bytes = 0;   // maximum of `bytes` so far
    int64_t used_bytes = 0;   // in blocks that callers hold
    int64_t allocations = 0;  // calls of HostMemory::allocate
  };
  // Returns the current counts.
  Usage usage() const;

 private:
  std::shared_ptr<State> state_;  // blocks hold it too
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_MEMORY_POOL_H_
