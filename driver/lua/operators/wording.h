// Messages of libtorch in the words of Lockstep's scripts.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_WORDING_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_WORDING_H_

#include <string>

namespace lockstep::lua {

// Returns the message with our names for Python's: `find_unused`, `sharding.data_parallel`. Where a
// dtype was wrong, adds how to get the right one.
std::string InOurWords(std::string message);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_WORDING_H_
