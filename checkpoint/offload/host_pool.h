// Host memory for copies of tensors: exactly as much as they need, and no allocation once warm.
//
// PyTorch's allocator of pinned memory rounds each request up to a power of two: 1.78 times what
// was asked for in a measured case. This one allocates what is asked for, keeps what comes back,
// and splits it for smaller requests:
//
//   auto pool = std::make_shared<HostPool>(PageableMemory());
//   absl::StatusOr<HostPool::Block> block = pool->Take(bytes);
//   ... copy to block->data() ...
//   block->ReturnWhen([event] { return event->query(); });   // not before the device is done
//
// A Block returns to its pool when it is destroyed, whatever became of the code that held it.
// Free memory beyond what the traffic needs is given back before more is allocated. Where each
// allocation is expensive, small requests share slabs; the last slab is then not full.
//
// Thread-safe.

#ifndef LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_POOL_H_
#define LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_POOL_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::checkpoint {

// Where a pool's memory comes from. `allocate` returns nullptr where there is none.
struct HostMemory {
  std::function<void*(int64_t bytes)> allocate;
  std::function<void(void* data, int64_t bytes)> release;
  // Smaller requests share allocations of this size: page-locking takes long for each. 0: none do.
  int64_t slab_bytes = 0;
};

HostMemory PageableMemory();

class HostPool : public std::enable_shared_from_this<HostPool> {
  struct Segment;

 public:
  // Some bytes of the pool, 64-byte aligned.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept;
    ~Block() { Return(); }

    void* data() const { return data_; }
    int64_t bytes() const { return bytes_; }  // 0: holds nothing

    // Sets what the pool asks before it hands the memory on: whether those that still read or write
    // it have finished. An exception counts as no.
    void ReturnWhen(std::function<bool()> is_finished) { is_finished_ = std::move(is_finished); }

   private:
    friend class HostPool;
    void Return();
    std::shared_ptr<HostPool> pool_;
    Segment* segment_ = nullptr;
    void* data_ = nullptr;
    int64_t bytes_ = 0;
    std::function<bool()> is_finished_;
  };

  // Never allocates more than max_bytes.
  explicit HostPool(HostMemory memory, int64_t max_bytes = INT64_MAX)
      : memory_(std::move(memory)), max_bytes_(max_bytes) {}
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  ~HostPool();

  // At least 1 byte. ResourceExhausted where the machine has no more, OutOfRange where max_bytes
  // would be exceeded.
  absl::StatusOr<Block> Take(int64_t bytes);

  struct Usage {
    int64_t bytes = 0;        // allocated, in use or free
    int64_t peak_bytes = 0;   // the most that `bytes` has been
    int64_t used_bytes = 0;   // in blocks that are out
    int64_t allocations = 0;  // calls of HostMemory::allocate
  };
  Usage usage() const;

 private:
  struct Segment {
    char* data = nullptr;
    int64_t bytes = 0;
    std::map<int64_t, std::pair<int64_t, bool>> pieces;  // by offset: bytes, whether free
  };
  struct Waiting {
    Segment* segment;
    int64_t offset;
    int64_t bytes;
    std::function<bool()> is_finished;
  };
  struct FreePiece {
    int64_t bytes;
    Segment* segment;
    int64_t offset;
    auto operator<=>(const FreePiece&) const = default;
  };

  void Return(Segment* segment, int64_t offset, int64_t bytes);
  void JoinReturned();
  void Free(Segment* segment, int64_t offset);
  void FreeFinished();
  void ReleaseFreeSegments(int64_t bytes);
  std::pair<Segment*, int64_t> Carve(int64_t bytes);
  Segment* Allocate(int64_t bytes);

  const HostMemory memory_;
  const int64_t max_bytes_;
  mutable std::mutex mutex_;  // guards all below
  std::list<Segment> segments_;
  std::set<FreePiece> free_;
  // Pieces that came back and are as they were, by size. Those in use as far as `pieces` goes.
  std::unordered_map<int64_t, std::vector<std::pair<Segment*, int64_t>>> returned_;
  std::vector<Waiting> waiting_;
  Usage usage_;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_OFFLOAD_HOST_POOL_H_
