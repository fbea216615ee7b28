#include "checkpoint/offload/host_pool.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

// A segment is one allocation, made for one request and of its size. It is a row of pieces, free or
// in use. A returned piece stays whole for a request of its size. So repeated traffic finds the
// pieces of the last time, in constant time and without allocation.
//
// Varied traffic (sequences of other lengths) splits and joins. For a request of a new size all
// returned pieces join their free neighbours. The request takes the smallest free piece that holds
// it and leaves the rest free. If all free pieces are too small, free segments are released before
// a new one is allocated. So the pool never holds free memory that no request can use.

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Whether a device has finished with a block. One that has failed cannot say, and may still write.
bool HasFinished(const std::function<bool()>& is_finished) {
  try {
    return is_finished();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

HostMemory PageableMemory() {
  return {.allocate = [](int64_t bytes) { return std::aligned_alloc(kAlignment, RoundUp(bytes)); },
          .release = [](void* data, int64_t) { std::free(data); }};
}

HostPool::Block& HostPool::Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  Return();
  pool_ = std::move(other.pool_);
  segment_ = std::exchange(other.segment_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  is_finished_ = std::exchange(other.is_finished_, nullptr);
  return *this;
}

void HostPool::Block::Return() {
  if (segment_ == nullptr) return;
  const std::shared_ptr<HostPool> pool = std::move(pool_);
  const std::lock_guard<std::mutex> lock(pool->mutex_);
  const int64_t offset = static_cast<char*>(data_) - segment_->data;
  pool->usage_.used_bytes -= RoundUp(bytes_);
  if (is_finished_ == nullptr) {
    pool->Return(segment_, offset, RoundUp(bytes_));
  } else {
    pool->waiting_.push_back({segment_, offset, RoundUp(bytes_), std::move(is_finished_)});
  }
  segment_ = nullptr;
}

HostPool::~HostPool() {
  // Blocks hold the pool, so all have returned. Memory that a device may still use is not released:
  // the destructor cannot wait, and a process that ends in this state needs no release.
  for (const Waiting& waiting : waiting_)
    if (HasFinished(waiting.is_finished)) Return(waiting.segment, waiting.offset, waiting.bytes);
  JoinReturned();
  ReleaseFreeSegments(usage_.bytes);
}

absl::StatusOr<HostPool::Block> HostPool::Take(int64_t bytes) {
  if (bytes < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: a block of host memory has at least 1 byte, not ", bytes));
  const std::lock_guard<std::mutex> lock(mutex_);
  FreeFinished();
  const int64_t rounded = RoundUp(bytes);
  const auto [segment, offset] = Carve(rounded);
  if (segment == nullptr && usage_.bytes + rounded > max_bytes_)
    return absl::OutOfRangeError(
        absl::StrCat("checkpoint: ", bytes, " bytes of host memory more would exceed the limit of ",
                     max_bytes_, "; ", usage_.bytes, " are allocated"));
  if (segment == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat(
        "checkpoint: this machine has no ", bytes, " bytes of host memory more; ", usage_.bytes,
        " bytes hold copies of saved tensors. Offload fewer or shorter regions, raise min_bytes, "
        "or raise the limit on locked memory (ulimit -l)"));
  usage_.used_bytes += rounded;
  Block block;
  block.pool_ = shared_from_this();
  block.segment_ = segment;
  block.data_ = segment->data + offset;
  block.bytes_ = bytes;
  return block;
}

HostPool::Usage HostPool::usage() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return usage_;
}

void HostPool::Return(Segment* segment, int64_t offset, int64_t bytes) {
  returned_[bytes].emplace_back(segment, offset);
}

void HostPool::JoinReturned() {
  for (const auto& [bytes, pieces] : returned_)
    for (const auto& [segment, offset] : pieces) Free(segment, offset);
  returned_.clear();
}

void HostPool::Free(Segment* segment, int64_t offset) {
  auto piece = segment->pieces.find(offset);
  piece->second.second = true;
  const auto join_next = [&](auto first) {
    const auto next = std::next(first);
    if (next == segment->pieces.end() || !next->second.second) return;
    free_.erase({next->second.first, segment, next->first});
    first->second.first += next->second.first;
    segment->pieces.erase(next);
  };
  join_next(piece);
  if (piece != segment->pieces.begin() && std::prev(piece)->second.second) {
    piece = std::prev(piece);
    free_.erase({piece->second.first, segment, piece->first});
    join_next(piece);
  }
  free_.insert({piece->second.first, segment, piece->first});
}

void HostPool::FreeFinished() {
  if (waiting_.empty()) return;
  std::vector<Waiting> still;
  for (Waiting& waiting : waiting_) {
    if (HasFinished(waiting.is_finished)) {
      Return(waiting.segment, waiting.offset, waiting.bytes);
    } else {
      still.push_back(std::move(waiting));
    }
  }
  waiting_ = std::move(still);
}

// Until `bytes` are released, or no segment is free as a whole.
void HostPool::ReleaseFreeSegments(int64_t bytes) {
  for (auto segment = segments_.begin(); segment != segments_.end() && bytes > 0;) {
    const auto& [size, is_free] = segment->pieces.begin()->second;
    if (!is_free || size != segment->bytes) {
      ++segment;
      continue;
    }
    free_.erase({size, &*segment, 0});
    memory_.release(segment->data, segment->bytes);
    usage_.bytes -= segment->bytes;
    bytes -= segment->bytes;
    segment = segments_.erase(segment);
  }
}

// Allocates a slab for a small request where there is room for one, else the bytes alone.
HostPool::Segment* HostPool::Allocate(int64_t bytes) {
  ReleaseFreeSegments(bytes);
  const auto allocate = [&](int64_t size) -> Segment* {
    if (usage_.bytes > max_bytes_ - size) return nullptr;
    auto* const data = static_cast<char*>(memory_.allocate(size));
    if (data == nullptr) return nullptr;
    usage_.bytes += size;
    usage_.peak_bytes = std::max(usage_.peak_bytes, usage_.bytes);
    ++usage_.allocations;
    return &segments_.emplace_back(Segment{data, size, {{0, {size, true}}}});
  };
  if (bytes < memory_.slab_bytes)
    if (Segment* const slab = allocate(memory_.slab_bytes)) return slab;
  ReleaseFreeSegments(usage_.bytes - (max_bytes_ - bytes));
  return allocate(bytes);
}

std::pair<HostPool::Segment*, int64_t> HostPool::Carve(int64_t bytes) {
  if (const auto same = returned_.find(bytes); same != returned_.end() && !same->second.empty()) {
    const std::pair<Segment*, int64_t> piece = same->second.back();
    same->second.pop_back();
    return piece;
  }
  JoinReturned();
  auto found = free_.lower_bound({bytes, nullptr, 0});
  if (found == free_.end()) {
    Segment* const segment = Allocate(bytes);
    if (segment == nullptr) return {nullptr, 0};
    found = free_.insert({segment->bytes, segment, 0}).first;
  }
  const FreePiece piece = *found;
  free_.erase(found);
  piece.segment->pieces[piece.offset] = {bytes, false};
  if (piece.bytes > bytes) {
    piece.segment->pieces[piece.offset + bytes] = {piece.bytes - bytes, true};
    free_.insert({piece.bytes - bytes, piece.segment, piece.offset + bytes});
  }
  return {piece.segment, piece.offset};
}

}  // namespace lockstep::checkpoint
