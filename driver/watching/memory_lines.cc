#include "driver/watching/memory_lines.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "c10/core/Allocator.h"
#include "c10/util/Exception.h"
#include "c10/util/ThreadLocalDebugInfo.h"

namespace lockstep::driver {
namespace {

struct Held {
  int64_t bytes = 0;
  int64_t count = 0;
};
using HeldByPlace = std::map<std::string, Held>;

std::vector<LineMemory> MostFirst(const HeldByPlace& places) {
  std::vector<LineMemory> lines;
  for (const auto& [place, held] : places) {
    if (held.count > 0) lines.push_back({place, held.bytes, held.count});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return lines;
}

}  // namespace

// The events of allocators. The peak is copied when memory is freed after it, not at each
// allocation that is the highest so far.
class MemoryTracker::Allocations : public c10::MemoryReportingInfoBase {
 public:
  Allocations(c10::DeviceType device, std::function<std::string()> find_place, bool keeps_points)
      : device_(device),
        find_place_(std::move(find_place)),
        keeps_points_(keeps_points),
        outer_thread_info_(c10::ThreadLocalDebugInfo::current()) {
    c10::DebugInfoBase* const outer =
        c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
    // Kineto takes whatever it finds in that place for its own.
    outer_ = dynamic_cast<Allocations*>(outer);
    TORCH_CHECK_VALUE(
        outer == outer_,
        "lockstep.memory_by_line: a trace is under way, and libtorch can do one of the "
        "two at a time; call it outside of lockstep.profile and its steps");
  }

  bool memoryProfilingEnabled() const override { return true; }

  void reportMemoryUsage(void* address, int64_t bytes, size_t allocated, size_t reserved,
                         c10::Device device) override {
    if (outer_ != nullptr) outer_->reportMemoryUsage(address, bytes, allocated, reserved, device);
    if (device.type() != device_ || bytes == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > 0) {
      Add(address, bytes);
    } else {
      Remove(address);
    }
    if (keeps_points_) points_.push_back({Seconds(Clock::now() - start_).count(), held_bytes_});
  }

  MemoryByLine Report() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {peak_bytes_, MostFirst(is_at_peak_ ? places_ : peak_), held_bytes_, MostFirst(places_)};
  }

  std::vector<MemoryPoint> Points() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return points_;
  }

 private:
  struct Allocation {
    HeldByPlace::iterator place;
    int64_t bytes;
  };

  void Add(void* address, int64_t bytes) {
    const auto place = places_.try_emplace(find_place_()).first;
    place->second.bytes += bytes;
    ++place->second.count;
    allocations_[address] = {place, bytes};
    held_bytes_ += bytes;
    if (held_bytes_ > peak_bytes_) {
      peak_bytes_ = held_bytes_;
      is_at_peak_ = true;
    }
  }

  void Remove(void* address) {
    const auto allocation = allocations_.find(address);
    if (allocation == allocations_.end()) return;  // older than this
    if (std::exchange(is_at_peak_, false)) peak_ = places_;
    Held& held = allocation->second.place->second;
    held.bytes -= allocation->second.bytes;
    --held.count;
    held_bytes_ -= allocation->second.bytes;
    allocations_.erase(allocation);
  }

  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  const c10::DeviceType device_;
  const std::function<std::string()> find_place_;
  const bool keeps_points_;
  const Clock::time_point start_ = Clock::now();
  // Another tracker around this one goes on seeing everything, and lives as long as what holds it.
  const std::shared_ptr<c10::ThreadLocalDebugInfo> outer_thread_info_;
  Allocations* outer_ = nullptr;
  mutable std::mutex mutex_;  // threads of backward report too, where there are any
  HeldByPlace places_;
  std::unordered_map<void*, Allocation> allocations_;
  int64_t held_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::vector<MemoryPoint> points_;
  HeldByPlace peak_;         // of the highest before the last free
  bool is_at_peak_ = false;  // what is held now is the most so far
};

MemoryTracker::MemoryTracker(c10::DeviceType device, std::function<std::string()> find_place,
                             bool keeps_points)
    : allocations_(std::make_shared<Allocations>(device, std::move(find_place), keeps_points)),
      guard_(std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE,
                                                   allocations_)) {}

MemoryTracker::~MemoryTracker() = default;

MemoryByLine MemoryTracker::Report() const { return allocations_->Report(); }

std::vector<MemoryPoint> MemoryTracker::Points() const { return allocations_->Points(); }

}  // namespace lockstep::driver
