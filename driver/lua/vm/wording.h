// Rewrites messages of libtorch in the terms of Lockstep's scripts.

#ifndef LOCKSTEP_DRIVER_LUA_VM_WORDING_H_
#define LOCKSTEP_DRIVER_LUA_VM_WORDING_H_

#include <string>

namespace lockstep::lua {

// Returns the message with our names for Python's: `find_unused`, `sharding.data_parallel`. For a
// wrong dtype, adds how to get the right one.
std::string InOurWords(std::string message);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_WORDING_H_
