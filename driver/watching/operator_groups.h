// Sorts operators into groups, and says which of their arguments a call reads and writes.

#ifndef LOCKSTEP_DRIVER_WATCHING_OPERATOR_GROUPS_H_
#define LOCKSTEP_DRIVER_WATCHING_OPERATOR_GROUPS_H_

#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/Device.h"

namespace lockstep::driver {

// An OperatorKind says what is known of an operator before it is called.
struct OperatorKind {
  // Work says how the calls that it makes to other operators count.
  enum class Work {
    kNone,     // it moves nothing itself, as a view; its calls count as if it were not there
    kOwn,      // it has a kernel for the device; its calls are part of it
    kOfParts,  // its calls count, and itself only if there are none, as for copy_
  };
  struct Argument {
    bool is_read = false;
    bool is_written = false;
  };

  std::string name;  // "aten::add", without the overload
  std::string group;
  Work work = Work::kOfParts;
  bool has_flops = false;
  // It reads as much of its first argument as it writes: index_select, gather.
  bool reads_a_selection = false;
  std::vector<Argument> arguments;
  std::vector<bool> returns_new_memory;
};

// Returns the kind of an operator whose tensors are on `device`.
OperatorKind KindOf(const c10::OperatorHandle& op, c10::Device device);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_WATCHING_OPERATOR_GROUPS_H_
