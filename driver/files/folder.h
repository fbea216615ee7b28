// Changes of names in folders, with errors that name the paths.

#ifndef LOCKSTEP_DRIVER_FILES_FOLDER_H_
#define LOCKSTEP_DRIVER_FILES_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::driver {

// Gives a file or folder another name, in place of a file of that name.
absl::Status Rename(const std::string& from, const std::string& to);

// Removes these files of a folder, and the folder if that was all. If the path is a link, removes
// the link alone. Returns whether the folder is gone: a file that is not named keeps it. Does
// nothing if there is no such folder.
absl::StatusOr<bool> RemoveFolder(const std::string& path, const std::vector<std::string>& names);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_FOLDER_H_
