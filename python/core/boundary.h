// Carries errors and texts over the boundary between C and Python's ctypes.
//
//    extern "C" char* lockstep_half(int64_t value, int64_t* result) {
//      return Guarded([&] {
//        if (value % 2 != 0) throw StatusError(absl::InvalidArgumentError("value must be even"));
//        *result = value / 2;
//      });
//    }
//
// Why C and ctypes, in place of Python's C API: one file then serves every version of Python.
// ctypes releases the interpreter's lock while a function runs. python/lockstep/_core.py is the
// other side.
//
// No exception leaves a function. Texts that functions return belong to
// the caller, which gives them to lockstep_free.

#ifndef LOCKSTEP_PYTHON_CORE_BOUNDARY_H_
#define LOCKSTEP_PYTHON_CORE_BOUNDARY_H_

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::python {

// Returns a copy of `text` for the caller.
char* Give(absl::string_view text);

// Returns null for an OK status, otherwise "CODE message" with the name of the code:
// "INVALID_ARGUMENT sample 3 ...".
char* Report(const absl::Status& status);

// The error of a call, whose code Python gets.
class StatusError : public std::exception {
 public:
  explicit StatusError(absl::Status status) : status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return "see status()"; }

 private:
  absl::Status status_;
};

// Throws StatusError unless the status is OK.
inline void Check(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}

// Returns the value, or throws StatusError.
template <typename Value>
Value ValueOrThrow(absl::StatusOr<Value> value) {
  Check(value.status());
  return *std::move(value);
}

// Calls `function`, and reports what it throws.
template <typename Function>
char* Guarded(const Function& function) {
  try {
    function();
    return nullptr;
  } catch (const StatusError& error) {
    return Report(error.status());
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("there is not enough memory"));
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()));
  }
}

}  // namespace lockstep::python

#endif  // LOCKSTEP_PYTHON_CORE_BOUNDARY_H_
