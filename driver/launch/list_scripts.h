// Lists scripts for `lockstep --list`.

#ifndef LOCKSTEP_DRIVER_LAUNCH_LIST_SCRIPTS_H_
#define LOCKSTEP_DRIVER_LAUNCH_LIST_SCRIPTS_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep::driver {

// Returns a line for each script of the folder, sorted by name: its path, and the first sentence of
// its first comment. Leaves out files that begin with "---": they are modules, which scripts load.
// Returns NotFound if the folder does not exist or holds no script.
absl::StatusOr<std::string> ListScripts(const std::string& folder);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_LIST_SCRIPTS_H_
