// What scripts there are: `lockstep --list`.

#ifndef LOCKSTEP_DRIVER_LAUNCH_LIST_SCRIPTS_H_
#define LOCKSTEP_DRIVER_LAUNCH_LIST_SCRIPTS_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep::driver {

// A line for each script of the folder, in order of name: its path, and the first sentence of the
// comment that it begins with. A file that begins with "---" is a module, which scripts load.
// NotFound names a folder that is none, or that holds no script.
absl::StatusOr<std::string> ListScripts(const std::string& folder);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_LIST_SCRIPTS_H_
