#include <cstring>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "sharding/fully_shard/flat_memory.h"
#include "sharding/fully_shard/flat_unit.h"

// The collectives of a unit as memory that the caller moves: for sockets on which the ranks compare
// their turns anyway. On the host alone. Each rank sends its span to every other one, or the other
// one's span to it; both lie in one piece.

namespace lockstep::sharding {
namespace {

absl::Span<char> SpanOf(const at::Tensor& dense, int64_t offset, int64_t bytes) {
  return {static_cast<char*>(dense.mutable_data_ptr()) + offset, static_cast<size_t>(bytes)};
}

}  // namespace

int64_t FlatUnit::gather_part_bytes() const {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) bytes += SpanBytes(segment);
  return bytes;
}

int64_t FlatUnit::reduce_part_bytes() const {
  int64_t bytes = 0;
  for (const Segment& segment : segments_) {
    if (IsTrained(segment)) bytes += BytesOf(segment.layout.span, segment.reduce_dtype);
  }
  return bytes;
}

Collective::Parts FlatUnit::PrepareGather() {
  TORCH_INTERNAL_ASSERT(state_ == State::kSharded && ranks_ > 1);
  const NoAutogradGuard quiet;
  slot_ = pool_->Acquire(gathered_bytes());
  const auto ranks = static_cast<size_t>(ranks_);
  Collective::Parts parts{std::vector<std::vector<absl::Span<const char>>>(ranks),
                          std::vector<std::vector<absl::Span<char>>>(ranks)};
  for (Segment& segment : segments_) {
    segment.input = InputOf(segment);
    const int64_t bytes = SpanBytes(segment);
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == rank_) continue;
      parts.to[static_cast<size_t>(rank)].push_back(SpanOf(segment.input, 0, bytes));
      parts.from[static_cast<size_t>(rank)].push_back(
          SpanOf(slot_, InSlot(segment) + rank * bytes, bytes));
    }
  }
  return parts;
}

void FlatUnit::TakeGather() {
  for (Segment& segment : segments_) {
    const int64_t bytes = SpanBytes(segment);
    const auto own = SpanOf(slot_, InSlot(segment) + rank_ * bytes, bytes);
    std::memcpy(own.data(), segment.input.const_data_ptr(), own.size());
  }
  state_ = State::kInFlight;
}

Collective::Parts FlatUnit::PrepareReduce() {
  TORCH_INTERNAL_ASSERT(!is_reducing_ && ranks_ > 1);
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  const auto ranks = static_cast<size_t>(ranks_);
  Collective::Parts parts{std::vector<std::vector<absl::Span<const char>>>(ranks),
                          std::vector<std::vector<absl::Span<char>>>(ranks)};
  for (Segment& segment : segments_) {
    if (!IsTrained(segment)) continue;
    FillGradient(segment);
    AcquireReceived(segment);
    const int64_t bytes = BytesOf(segment.layout.span, segment.reduce_dtype);
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == rank_) continue;
      parts.to[static_cast<size_t>(rank)].push_back(SpanOf(segment.gradient, rank * bytes, bytes));
      parts.from[static_cast<size_t>(rank)].push_back(
          SpanOf(segment.received, rank * bytes, bytes));
    }
  }
  return parts;
}

void FlatUnit::TakeReduce(const std::string& any) {
  for (Segment& segment : segments_) {
    if (!segment.received.defined()) continue;
    const int64_t bytes = BytesOf(segment.layout.span, segment.reduce_dtype);
    const auto own = SpanOf(segment.received, rank_ * bytes, bytes);
    std::memcpy(own.data(), SpanOf(segment.gradient, rank_ * bytes, bytes).data(), own.size());
  }
  NoteReduction(any);
}

void FlatUnit::GiveUp() {
  for (Segment& segment : segments_) {
    segment.received.reset();
    if (segment.received_slot.defined())
      pool_->Release(std::exchange(segment.received_slot, at::Tensor()));
    if (state_ == State::kSharded) segment.input.reset();
  }
  if (slot_.defined() && state_ == State::kSharded)
    pool_->Release(std::exchange(slot_, at::Tensor()));
}

}  // namespace lockstep::sharding
