#include "driver/files/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::driver {

absl::StatusOr<AppendFile> AppendFile::Open(const std::string& path, Existing existing) {
  const int exclusive = existing == Existing::kRefuse ? O_EXCL : 0;
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | exclusive, 0666);
  if (file < 0)
    return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  return AppendFile(path, file);
}

AppendFile::AppendFile(std::string path, int file) : path_(std::move(path)), file_(file) {}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  return *this;
}

AppendFile::~AppendFile() {
  if (file_ >= 0) close(file_);
}

absl::Status AppendFile::Append(absl::string_view record) {
  struct stat before {};
  const bool is_known = fstat(file_, &before) == 0;
  // The open file may live on without its name: in a folder that was deleted or moved, or on a disk
  // that was unmounted.
  struct stat named {};
  const bool has_name = stat(path_.c_str(), &named) == 0;
  if (is_known && (!has_name || named.st_ino != before.st_ino || named.st_dev != before.st_dev)) {
    return absl::NotFoundError(
        absl::StrCat(path_, " was deleted, moved or unmounted while it was being written"));
  }
  size_t written = 0;
  while (written < record.size()) {
    const ssize_t count = write(file_, record.data() + written, record.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) {
      written += static_cast<size_t>(count);
      continue;
    }
    const std::string reason = std::strerror(count < 0 ? errno : ENOSPC);
    // Removes the part that was written: a reader must never find half a record.
    if (is_known && written > 0) std::ignore = ftruncate(file_, before.st_size);
    return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", reason));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::driver
