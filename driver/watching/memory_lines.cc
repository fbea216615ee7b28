#include "driver/watching/memory_lines.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
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
  }

  void Free(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Remove(address);
  }

  void ResetPeak() {
    const std::lock_guard<std::mutex> lock(mutex_);
    peak_bytes_ = held_bytes_;
    is_at_peak_ = true;
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
    Remove(address);  // memory that was freed where no tracker sees it
    const auto place = places_.try_emplace(find_place_()).first;
    place->second.bytes += bytes;
    ++place->second.count;
    allocations_[address] = {place, bytes};
    held_bytes_ += bytes;
    if (held_bytes_ > peak_bytes_) {
      peak_bytes_ = held_bytes_;
      is_at_peak_ = true;
    }
    NotePoint();
  }

  void Remove(void* address) {
    const auto allocation = allocations_.find(address);
    if (allocation == allocations_.end()) return;  // older than this tracker, or freed before
    if (std::exchange(is_at_peak_, false)) peak_ = places_;
    Held& held = allocation->second.place->second;
    held.bytes -= allocation->second.bytes;
    --held.count;
    held_bytes_ -= allocation->second.bytes;
    allocations_.erase(allocation);
    NotePoint();
  }

  void NotePoint() {
    if (keeps_points_) points_.push_back({Seconds(Clock::now() - start_).count(), held_bytes_});
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

// libtorch's allocator for CPUs, which also tells each tracker what any thread frees. libtorch
// reports a release to the observers of the thread that frees, and a thread of Gloo has none.
class MemoryTracker::WatchedAllocator : public c10::Allocator {
 public:
  // Installs one, once and for good, because memory keeps its deleter.
  static WatchedAllocator& Get() {
    static auto* const installed = [] {
      auto* const watched = new WatchedAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(watched, /*priority=*/100);
      return watched;
    }();
    return *installed;
  }

  void Add(Allocations* tracker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(tracker);
    has_trackers_ = true;
  }

  void Remove(Allocations* tracker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    trackers_.erase(std::find(trackers_.begin(), trackers_.end(), tracker));
    has_trackers_ = !trackers_.empty();
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = allocator_->allocate(bytes);
    std::ignore = data.compare_exchange_deleter(allocator_->raw_deleter(), &Free);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    allocator_->copy_data(to, from, bytes);
  }

 private:
  explicit WatchedAllocator(c10::Allocator* allocator) : allocator_(allocator) {}

  static void Free(void* address) {
    WatchedAllocator& self = Get();
    if (self.has_trackers_) {
      const std::lock_guard<std::mutex> lock(self.mutex_);
      for (Allocations* const tracker : self.trackers_) tracker->Free(address);
    }
    self.allocator_->raw_deleter()(address);
  }

  c10::Allocator* const allocator_;
  std::mutex mutex_;
  std::vector<Allocations*> trackers_;  // of the CPU, on all threads
  std::atomic<bool> has_trackers_ = false;
};

MemoryTracker::MemoryTracker(c10::DeviceType device, std::function<std::string()> find_place,
                             bool keeps_points)
    : allocations_(std::make_shared<Allocations>(device, std::move(find_place), keeps_points)),
      guard_(
          std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, allocations_)) {
  if (device != c10::DeviceType::CPU) return;
  reported_.emplace();
  WatchedAllocator::Get().Add(allocations_.get());
}

MemoryTracker::~MemoryTracker() {
  if (reported_.has_value()) WatchedAllocator::Get().Remove(allocations_.get());
}

void MemoryTracker::ResetPeak() { allocations_->ResetPeak(); }

MemoryByLine MemoryTracker::Report() const { return allocations_->Report(); }

std::vector<MemoryPoint> MemoryTracker::Points() const { return allocations_->Points(); }

}  // namespace lockstep::driver
