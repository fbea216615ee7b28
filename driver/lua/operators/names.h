// Hints for names that scripts use and torch, or a tensor, does not have.

#ifndef LOCKSTEP_DRIVER_LUA_OPERATORS_NAMES_H_
#define LOCKSTEP_DRIVER_LUA_OPERATORS_NAMES_H_

#include <string>
#include <vector>

namespace lockstep::lua {

// Returns "; did you mean ...?", or what stands here for PyTorch's name, or "".
std::string NameHint(const std::string& name, const std::vector<std::string>& known);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_OPERATORS_NAMES_H_
