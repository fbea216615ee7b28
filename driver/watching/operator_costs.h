// Measures what each operator moves, computes and takes, and compares it with what this machine can
// do: the numbers of a roofline.
//
//    OperatorCosts costs(at::kCPU);    // measures what this thread calls from here on
//    train_step();
//    costs.Stop();
//    const Peaks peaks = MeasurePeaks(at::kCPU, costs.FlopDtypes());
//    for (const OperatorCost& op : costs.ByOperator(peaks)) ...
//
// Only operators with a kernel count, once: aten::linear is its addmm, and what a kernel calls to
// do its work is part of it. Views and allocations move nothing.
//
//    bytes   of tensors that a call reads and writes, by its schema. An in-place operator reads and
//            writes its tensor; copy_ and fill_ only write it. A dimension that expand added has no
//            bytes. index_select and gather read as much of their source as they write.
//    flops   as FlopCounter has them: products of matrices, convolutions, attention.
//    bound   the least time that the peaks allow, the larger of bytes and flops over their peaks.
//
// Data that is still in the cache comes faster than from memory, so an operator may be faster than
// its bound. On a GPU each operator is waited for: the whole is slower, and a small operator shows
// its launch. Thread: measures on the thread that made it; use and destroy it there. One at a time.

#ifndef LOCKSTEP_DRIVER_WATCHING_OPERATOR_COSTS_H_
#define LOCKSTEP_DRIVER_WATCHING_OPERATOR_COSTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace lockstep::driver {

// Peaks are what a device can do at best.
struct Peaks {
  double bytes_per_s = 0;  // a copy of a large tensor, which reads and writes each byte
  std::map<c10::ScalarType, double> flops_per_s;  // a product of large matrices
};

// Measures them on this device, with this process's threads, in about a second on a CPU; later
// calls return what the first ones measured. A dtype without a product of matrices counts as
// float32, which is always measured.
Peaks MeasurePeaks(c10::Device device, const std::set<c10::ScalarType>& dtypes);

struct OperatorCost {
  std::string name;   // "aten::mm"
  std::string group;  // "matrix products", "attention", "normalisation", "pointwise",
                      // "reductions", "copies", "optimizer", "communication" or "other"
  int64_t calls = 0;
  int64_t bytes = 0;
  int64_t flops = 0;
  double seconds = 0;
  double bound_s = 0;  // 0 for communication, which has no peak here
};

class OperatorCosts {
 public:
  // Throws c10::Error if another one measures on this thread.
  explicit OperatorCosts(c10::Device device);
  OperatorCosts(const OperatorCosts&) = delete;
  OperatorCosts& operator=(const OperatorCosts&) = delete;
  ~OperatorCosts();

  // Ends the measurement; only the first call does.
  void Stop();

  // Returns the time from the construction to Stop.
  double seconds() const { return seconds_; }

  // Returns the dtypes of the operators that have flops.
  std::set<c10::ScalarType> FlopDtypes() const;

  // Returns the costs by operator, the longest first.
  std::vector<OperatorCost> ByOperator(const Peaks& peaks) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  double seconds_ = 0;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_OPERATOR_COSTS_H_
