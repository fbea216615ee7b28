#include "checkpoint/offload/host_memory_pool.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

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

// A row of pieces.
struct HostMemoryPool::Segment {
  char* data = nullptr;
  int64_t bytes = 0;
  std::map<int64_t, std::pair<int64_t, bool>> pieces;  // by offset: bytes, whether free
};

struct HostMemoryPool::State {
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

  State(HostMemory source, int64_t limit) : memory(std::move(source)), max_bytes(limit) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  void Return(Segment* segment, int64_t offset, int64_t bytes);
  void JoinReturned();
  void Free(Segment* segment, int64_t offset);
  void FreeFinished();
  void ReleaseFreeSegments(int64_t bytes);
  std::pair<Segment*, int64_t> Carve(int64_t bytes);
  Segment* Allocate(int64_t bytes);

  const HostMemory memory;
  const int64_t max_bytes;
  std::mutex mutex;  // guards all below
  std::list<Segment> segments;
  std::set<FreePiece> free_pieces;
  // Returned pieces, by size, before JoinReturned merges them. `pieces` counts them as in use.
  std::unordered_map<int64_t, std::vector<std::pair<Segment*, int64_t>>> returned;
  std::vector<Waiting> waiting;
  Usage usage;
};

HostMemoryPool::HostMemoryPool(HostMemory memory, int64_t max_bytes)
    : state_(std::make_shared<State>(std::move(memory), max_bytes)) {}

HostMemoryPool::Block& HostMemoryPool::Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  Return();
  pool_ = std::move(other.pool_);
  segment_ = std::exchange(other.segment_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  is_finished_ = std::exchange(other.is_finished_, nullptr);
  return *this;
}

void HostMemoryPool::Block::Return() {
  if (segment_ == nullptr) return;
  const std::shared_ptr<State> pool = std::move(pool_);
  const std::lock_guard<std::mutex> lock(pool->mutex);
  const int64_t offset = static_cast<char*>(data_) - segment_->data;
  pool->usage.used_bytes -= RoundUp(bytes_);
  if (is_finished_ == nullptr) {
    pool->Return(segment_, offset, RoundUp(bytes_));
  } else {
    pool->waiting.push_back({segment_, offset, RoundUp(bytes_), std::move(is_finished_)});
  }
  segment_ = nullptr;
}

HostMemoryPool::State::~State() {
  // Blocks hold the state, so all have returned. Memory that a device may still use is not
  // released: the destructor cannot wait, and a process that ends in this state needs no release.
  for (const Waiting& piece : waiting)
    if (HasFinished(piece.is_finished)) Return(piece.segment, piece.offset, piece.bytes);
  JoinReturned();
  ReleaseFreeSegments(usage.bytes);
}

absl::StatusOr<HostMemoryPool::Block> HostMemoryPool::Take(int64_t bytes) {
  if (bytes < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint: a block of host memory has at least 1 byte, not ", bytes));
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->FreeFinished();
  const int64_t rounded = RoundUp(bytes);
  const auto [segment, offset] = state_->Carve(rounded);
  if (segment == nullptr && state_->usage.bytes + rounded > state_->max_bytes)
    return absl::OutOfRangeError(
        absl::StrCat("checkpoint: ", bytes, " bytes of host memory more would exceed the limit of ",
                     state_->max_bytes, "; ", state_->usage.bytes, " are allocated"));
  if (segment == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat(
        "checkpoint: this machine has no ", bytes, " bytes of host memory more; ",
        state_->usage.bytes,
        " bytes hold copies of saved tensors. Offload fewer or shorter regions, raise min_bytes, "
        "or raise the limit on locked memory (ulimit -l)"));
  state_->usage.used_bytes += rounded;
  Block block;
  block.pool_ = state_;
  block.segment_ = segment;
  block.data_ = segment->data + offset;
  block.bytes_ = bytes;
  return block;
}

HostMemoryPool::Usage HostMemoryPool::usage() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->usage;
}

void HostMemoryPool::State::Return(Segment* segment, int64_t offset, int64_t bytes) {
  returned[bytes].emplace_back(segment, offset);
}

void HostMemoryPool::State::JoinReturned() {
  for (const auto& [bytes, pieces] : returned)
    for (const auto& [segment, offset] : pieces) Free(segment, offset);
  returned.clear();
}

void HostMemoryPool::State::Free(Segment* segment, int64_t offset) {
  auto piece = segment->pieces.find(offset);
  piece->second.second = true;
  const auto join_next = [&](auto first) {
    const auto next = std::next(first);
    if (next == segment->pieces.end() || !next->second.second) return;
    free_pieces.erase({next->second.first, segment, next->first});
    first->second.first += next->second.first;
    segment->pieces.erase(next);
  };
  join_next(piece);
  if (piece != segment->pieces.begin() && std::prev(piece)->second.second) {
    piece = std::prev(piece);
    free_pieces.erase({piece->second.first, segment, piece->first});
    join_next(piece);
  }
  free_pieces.insert({piece->second.first, segment, piece->first});
}

void HostMemoryPool::State::FreeFinished() {
  if (waiting.empty()) return;
  std::vector<Waiting> still;
  for (Waiting& piece : waiting) {
    if (HasFinished(piece.is_finished)) {
      Return(piece.segment, piece.offset, piece.bytes);
    } else {
      still.push_back(std::move(piece));
    }
  }
  waiting = std::move(still);
}

// Until `bytes` are released, or no segment is free as a whole.
void HostMemoryPool::State::ReleaseFreeSegments(int64_t bytes) {
  for (auto segment = segments.begin(); segment != segments.end() && bytes > 0;) {
    const auto& [size, is_free] = segment->pieces.begin()->second;
    if (!is_free || size != segment->bytes) {
      ++segment;
      continue;
    }
    free_pieces.erase({size, &*segment, 0});
    memory.release(segment->data, segment->bytes);
    usage.bytes -= segment->bytes;
    bytes -= segment->bytes;
    segment = segments.erase(segment);
  }
}

// Allocates a slab for a small request where there is room for one, else the bytes alone.
HostMemoryPool::Segment* HostMemoryPool::State::Allocate(int64_t bytes) {
  ReleaseFreeSegments(bytes);
  const auto allocate = [&](int64_t size) -> Segment* {
    if (usage.bytes > max_bytes - size) return nullptr;
    auto* const data = static_cast<char*>(memory.allocate(size));
    if (data == nullptr) return nullptr;
    usage.bytes += size;
    usage.peak_bytes = std::max(usage.peak_bytes, usage.bytes);
    ++usage.allocations;
    return &segments.emplace_back(Segment{data, size, {{0, {size, true}}}});
  };
  if (bytes < memory.slab_bytes)
    if (Segment* const slab = allocate(memory.slab_bytes)) return slab;
  ReleaseFreeSegments(usage.bytes - (max_bytes - bytes));
  return allocate(bytes);
}

std::pair<HostMemoryPool::Segment*, int64_t> HostMemoryPool::State::Carve(int64_t bytes) {
  if (const auto same = returned.find(bytes); same != returned.end() && !same->second.empty()) {
    const std::pair<Segment*, int64_t> piece = same->second.back();
    same->second.pop_back();
    return piece;
  }
  JoinReturned();
  auto found = free_pieces.lower_bound({bytes, nullptr, 0});
  if (found == free_pieces.end()) {
    Segment* const segment = Allocate(bytes);
    if (segment == nullptr) return {nullptr, 0};
    found = free_pieces.insert({segment->bytes, segment, 0}).first;
  }
  const FreePiece piece = *found;
  free_pieces.erase(found);
  piece.segment->pieces[piece.offset] = {bytes, false};
  if (piece.bytes > bytes) {
    piece.segment->pieces[piece.offset + bytes] = {piece.bytes - bytes, true};
    free_pieces.insert({piece.bytes - bytes, piece.segment, piece.offset + bytes});
  }
  return {piece.segment, piece.offset};
}

}  // namespace lockstep::checkpoint
