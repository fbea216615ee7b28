// Turns failures of libraries that know no Lua into errors of the script.

#ifndef LOCKSTEP_DRIVER_LUA_VM_STATUS_H_
#define LOCKSTEP_DRIVER_LUA_VM_STATUS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

// Throws `prefix` and the status's message unless the status is OK.
inline void Check(const absl::Status& status, const std::string& prefix = "") {
  if (!status.ok()) throw Error(prefix + std::string(status.message()));
}

// Returns the result's value, or throws as Check does.
template <typename T>
T ValueOrThrow(absl::StatusOr<T> result, const std::string& prefix = "") {
  Check(result.status(), prefix);
  return *std::move(result);
}

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_STATUS_H_
