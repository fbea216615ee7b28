// What a region does not recompute: the results of operators that are named.
//
//   CheckpointOptions options;
//   options.save = Selection::Of({"aten::mm", "aten::_scaled_dot_product_flash_attention"});
//
// In forward the results of these operators are kept, in order, operator by operator; the
// recomputation hands them out in that order and runs everything else. Memory and time lie between
// those of a plain graph and of a region that recomputes all.
//
// The names are those of what runs below autograd: aten::linear and aten::matmul are aten::mm,
// aten::addmm and aten::bmm there. A kept result that is modified in place is of no use: it is
// dropped, and the recomputation runs its operator again (KeptResults::num_modified counts). So the
// bias that aten::linear adds in place to a product costs time and never correctness. Writes that
// autograd cannot see, through `data` or a raw pointer, are not seen here either.
//
// Source: the selective checkpoint contexts of torch/utils/checkpoint.py of PyTorch 2.11.
// Method: a kernel at the dispatch key ADInplaceOrView, the last that counts writes. Every call
// passes it once, on its way from autograd to the device; calls that a device's kernel makes itself
// pass below it, and belong to the result of that kernel. Operators that were named once carry it
// for the rest of the process, as do aten::_unsafe_view and aten::unsafe_split; others cost
// nothing. Thread: a scope is its thread's.

#ifndef LOCKSTEP_CHECKPOINT_REGION_SELECTION_H_
#define LOCKSTEP_CHECKPOINT_REGION_SELECTION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "ATen/core/operator_name.h"
#include "base/torch/replay.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorImpl.h"

namespace lockstep::checkpoint {

// Names of operators, "aten::mm" for all its overloads or "aten::sum.dim_IntList" for one.
class Selection {
 public:
  // Throws c10::ValueError where a name is no operator, or one whose results cannot be kept.
  static std::shared_ptr<const Selection> Of(const std::vector<std::string>& operators);

  bool Contains(const c10::OperatorName& name) const { return names_.count(name) > 0; }

  // Each overload that is kept, "aten::mm" or "aten::sum.dim_IntList".
  std::vector<std::string> Names() const;

 private:
  struct ByName {
    bool operator()(const c10::OperatorName& a, const c10::OperatorName& b) const {
      return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
    }
  };
  std::set<c10::OperatorName, ByName> names_;
};

// Of one region's forward pass.
class KeptResults {
 public:
  // A tensor in the memory of a result: its count of writes, and what that was when it was made.
  struct Watched {
    const c10::StorageImpl* storage;
    c10::VariableVersion counter;
    uint32_t version;
  };
  struct Call {
    std::vector<c10::IValue> results;  // tensors are aliases without history; empty: dropped
    std::vector<Watched> watched;      // the results, and tensors that hide that they are views
    base::RandomState random;          // after an operator that draws

    bool IsModified() const;
  };
  // Drops results that have been modified, and their memory.
  void DropModified();

  std::map<std::string, std::vector<Call>> calls;  // by operator and overload
  bool keep_random = true;                         // whether calls keep generators, too
  int64_t num_modified = 0;  // results that recomputations ran again, since they were modified
};

// While it lives, calls of selected operators on this thread are kept in `results`, or taken from
// there. Without a selection nothing is, whatever holds outside.
class SelectionScope {
 public:
  enum class Pass { kForward, kRecompute };
  SelectionScope(const Selection* selection, KeptResults* results, Pass pass);
  SelectionScope(const SelectionScope&) = delete;
  SelectionScope& operator=(const SelectionScope&) = delete;
  ~SelectionScope();

  struct Active {
    const Selection* selection;
    KeptResults* results;
    Pass pass;
    std::map<std::string, size_t> taken;  // in a recomputation: calls handed out, by operator
  };

 private:
  Active active_;
  Active* outer_;
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_SELECTION_H_
