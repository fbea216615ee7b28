// Carries errors and texts over the boundary between C and Python's ctypes.
//
//    extern "C" char* lockstep_half(int64_t value, int64_t* result) {
//      return Guarded([&]() -> absl::Status {
//        if (value % 2 != 0) return absl::InvalidArgumentError("value must be even");
//        *result = value / 2;
//        return absl::OkStatus();
//      });
//    }
//
// Why C and ctypes, in place of Python's C API: one file then serves every version of Python.
// ctypes releases the interpreter's lock while a function runs. python/lockstep/_core.py is the
// other side.
//
// No exception leaves a function. Texts that functions return belong to the caller, which gives
// them to lockstep_free.

#ifndef LOCKSTEP_PYTHON_CORE_BOUNDARY_H_
#define LOCKSTEP_PYTHON_CORE_BOUNDARY_H_

#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep::python {

// Returns a copy of `text` for the caller.
char* Give(absl::string_view text);

// Returns null for an OK status, otherwise "CODE message" with the name of the code:
// "INVALID_ARGUMENT sample 3 ...".
char* Report(const absl::Status& status);

// Calls `function`, which returns an absl::Status, and reports what it returns or throws.
template <typename Function>
char* Guarded(const Function& function) {
  try {
    return Report(function());
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("there is not enough memory"));
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()));
  }
}

}  // namespace lockstep::python

#endif  // LOCKSTEP_PYTHON_CORE_BOUNDARY_H_
