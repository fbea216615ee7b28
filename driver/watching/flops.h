// Counts floating-point operations at the dispatcher, which every operator passes.
//
//    FlopCounter counter;                    // counts what this thread calls from here on
//    loss.backward();
//    for (const OperatorFlops& op : counter.ByOperator()) ...
//
// Formulas and operators are those of torch.utils.flop_counter, forward and backward: 2 m n k for a
// product of matrices; convolutions; attention without regard to a causal mask. There are two
// differences. The backward of a grouped convolution counts twice its forward (torch counts more),
// and the CPU's flash attention counts too. Sums and element-wise operators count nothing.
// Operators that are recomputed in backward count again: the counter counts executed operations.
//
// Costs nothing while no counter lives, otherwise a callback for each operator. Counters may nest.
// Lengths of variable-length attention are read from its cum_seq tensors, which waits for their
// device. Thread: counts on the thread that made it; read and destroy it there.

#ifndef LOCKSTEP_DRIVER_WATCHING_FLOPS_H_
#define LOCKSTEP_DRIVER_WATCHING_FLOPS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "c10/util/ArrayRef.h"

namespace lockstep::driver {

struct OperatorFlops {
  std::string name;  // "aten::addmm"
  int64_t flops = 0;
  int64_t calls = 0;
};

// Returns whether calls of this operator are counted.
bool HasFlops(const std::string& name);

// Returns the operations of one call. Returns nothing for an operator that is not counted, and for
// arguments that its kernel is about to refuse.
std::optional<int64_t> FlopsOf(const char* name, c10::ArrayRef<const c10::IValue> inputs);

class FlopCounter {
 public:
  FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  ~FlopCounter();

  int64_t total() const { return total_; }

  // Returns the counts by operator, largest first.
  std::vector<OperatorFlops> ByOperator() const;

  // Called by the dispatcher's callback.
  void Add(const char* name, int64_t flops);

 private:
  int64_t total_ = 0;
  std::map<std::string, OperatorFlops> by_operator_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_FLOPS_H_
