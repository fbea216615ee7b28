// Files that come with the program.

#ifndef LOCKSTEP_DRIVER_FILES_FILES_H_
#define LOCKSTEP_DRIVER_FILES_FILES_H_

#include <string>

namespace lockstep::driver {

// The path of a file or folder that the build put beside the program, named from the workspace's
// root: "driver/lua". Looks in a test's runfiles, in the program's, and, for a program that was
// copied elsewhere together with them, in `<folder of the program>/<path>`. Throws c10::Error,
// naming the places, where there is none.
std::string FindRunfile(const std::string& path);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_FILES_H_
