// Finds files that come with the program.

#ifndef LOCKSTEP_DRIVER_FILES_FILES_H_
#define LOCKSTEP_DRIVER_FILES_FILES_H_

#include <string>

namespace lockstep::driver {

// Returns the path of a file or folder that the build put next to the program, named from the
// workspace's root: "driver/lualib". Looks in a test's runfiles and in the program's. For a program
// that was copied elsewhere together with its files, looks in `<folder of the program>/<path>`. If
// it finds nothing, throws c10::Error with these places.
std::string FindRunfile(const std::string& path);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_FILES_H_
