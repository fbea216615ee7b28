#include "driver/watching/cpu_allocator.h"

#include <atomic>
#include <cstdlib>
#include <tuple>

#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/alignment.h"

namespace lockstep::driver {
namespace {

// The number of ReportedAllocations that live.
constinit std::atomic<int> num_reported = 0;

bool AreReported() { return num_reported.load(std::memory_order_relaxed) > 0; }

size_t RoundedUp(size_t bytes) {
  return (bytes + c10::gAlignment - 1) / c10::gAlignment * c10::gAlignment;
}

class CpuAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes - 1 < kMaxUnreportedBytes && !AreReported()) {  // 0 bytes have no address
      void* const address = std::aligned_alloc(c10::gAlignment, RoundedUp(bytes));
      if (address != nullptr) return {address, address, &Free, c10::Device(c10::kCPU)};
    }
    c10::DataPtr data = libtorchs().allocate(bytes);  // an error where there is no memory
    std::ignore = data.compare_exchange_deleter(libtorchs().raw_deleter(), &Free);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    libtorchs().copy_data(to, from, bytes);
  }

 private:
  static c10::Allocator& libtorchs() { return *c10::GetDefaultCPUAllocator(); }

  static void Free(void* address) {
    if (AreReported()) {
      libtorchs().raw_deleter()(address);
    } else {
      std::free(address);
    }
  }
};

}  // namespace

void InstallCpuAllocator() {
  // Never destroyed: tensors that live until the process ends use it.
  static auto* const allocator = new CpuAllocator;
  c10::SetCPUAllocator(allocator);
}

ReportedAllocations::ReportedAllocations() { ++num_reported; }
ReportedAllocations::~ReportedAllocations() { --num_reported; }

}  // namespace lockstep::driver
