// Selects operators whose results a region keeps, so that backward does not compute them again.
//
//    CheckpointOptions options;
//    options.save = Selection::Of({"aten::mm", "aten::_scaled_dot_product_flash_attention"});
//
// Use it when full recomputation is too slow and there is memory for some results. Memory and time
// lie between those of a plain graph and those of a region that recomputes everything. Forward
// keeps the results of these operators, in order for each operator. The recomputation returns them
// in that order and runs everything else.
//
// Give the names of the operators that run below autograd: aten::linear and aten::matmul run as
// aten::mm, aten::addmm and aten::bmm. A kept result that is modified in place is dropped, and the
// recomputation runs its operator again (KeptResults::num_modified counts them). So the bias that
// aten::linear adds in place to a product costs time but never correctness. Writes that autograd
// cannot see, through `data` or a raw pointer, are not detected here either.
//
// Source: the selective checkpoint contexts of torch/utils/checkpoint.py of PyTorch 2.11.
//
// Method: a kernel at the dispatch key ADInplaceOrView, the last key that counts writes. Every call
// passes it once, on its way from autograd to the device. Calls that a device's kernel makes itself
// pass below it; they belong to the result of that kernel. An operator that was named once keeps
// this kernel for the rest of the process, as do aten::_unsafe_view and aten::unsafe_split. Other
// operators cost nothing.
//
// Thread: a scope acts on the thread that made it.

#ifndef LOCKSTEP_CHECKPOINT_REGION_SELECTION_H_
#define LOCKSTEP_CHECKPOINT_REGION_SELECTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "ATen/core/operator_name.h"
#include "base/torch/replay.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorImpl.h"

namespace lockstep::checkpoint {

// A set of operators: "aten::mm" stands for all its overloads, "aten::sum.dim_IntList" for one.
class Selection {
 public:
  // Throws c10::ValueError if a name is not an operator, or if its results cannot be kept.
  static std::shared_ptr<const Selection> Of(const std::vector<std::string>& operators);

  // Returns whether the results of this operator are kept.
  bool Contains(const c10::OperatorName& name) const { return names_.count(name) > 0; }

  // Returns each overload that is kept, as "aten::mm" or "aten::sum.dim_IntList".
  std::vector<std::string> Names() const;

 private:
  struct ByName {
    bool operator()(const c10::OperatorName& a, const c10::OperatorName& b) const {
      return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
    }
  };
  std::set<c10::OperatorName, ByName> names_;
};

// The kept results of one region's forward pass.
class KeptResults {
 public:
  // A tensor in the memory of a result, and its count of writes when the result was made.
  struct Watched {
    const c10::StorageImpl* storage;
    c10::VariableVersion counter;
    uint32_t version;
  };
  struct Call {
    std::vector<c10::IValue> results;  // tensors as aliases without history; empty: dropped
    std::vector<Watched> watched;      // the results, and tensors that are hidden views
    base::RandomState random;          // after an operator that draws random numbers

    // Returns whether a result was written to since it was made.
    bool IsModified() const;
  };
  // Drops results that have been modified, and frees their memory.
  void DropModified();

  std::map<std::string, std::vector<Call>> calls;  // by operator and overload
  bool keep_random = true;                         // whether calls keep random states too
  bool is_complete = false;                        // whether forward has ended
  int64_t num_modified = 0;  // results computed again because they were modified
};

// While it lives, calls of selected operators on this thread are kept in `results`, or taken from
// there. Without a selection it turns an outer scope off.
class SelectionScope {
 public:
  enum class Mode { kForward, kRecompute };
  SelectionScope(const Selection* selection, KeptResults* results, Mode mode);
  SelectionScope(const SelectionScope&) = delete;
  SelectionScope& operator=(const SelectionScope&) = delete;
  ~SelectionScope();

  struct Active {
    const Selection* selection;
    KeptResults* results;
    Mode mode;
    std::map<std::string, size_t> taken;  // in a recomputation: calls returned so far, by operator
  };

 private:
  Active active_;
  Active* outer_;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_SELECTION_H_
