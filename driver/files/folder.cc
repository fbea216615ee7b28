#include "driver/files/folder.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

namespace fs = std::filesystem;

absl::Status Result(const std::error_code& error, const std::string& what) {
  if (!error) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("cannot ", what, ": ", error.message()));
}

}  // namespace

absl::Status Rename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return Result(error, absl::StrCat("rename ", from, " to ", to));
}

absl::StatusOr<bool> RemoveFolder(const std::string& path, const std::vector<std::string>& names) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) {
    for (const std::string& name : names) {
      const std::string file = absl::StrCat(path, "/", name);
      std::error_code failed;
      fs::remove(file, failed);
      absl::Status status = Result(failed, absl::StrCat("remove ", file));
      if (!status.ok()) return status;
    }
  }
  fs::remove(path, error);
  if (error == std::errc::directory_not_empty) return false;
  absl::Status status = Result(error, absl::StrCat("remove ", path));
  if (!status.ok()) return status;
  return true;
}

}  // namespace lockstep::driver
