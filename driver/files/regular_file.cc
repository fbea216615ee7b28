#include "driver/files/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "driver/files/file_wait.h"

namespace lockstep::driver {
namespace {

constexpr uint64_t kMostBytes = std::numeric_limits<int32_t>::max();

absl::Status Failed(int error) {
  const char* const reason = std::strerror(error);
  return error == ENOENT ? absl::NotFoundError(reason) : absl::UnknownError(reason);
}

}  // namespace

RegularFile::RegularFile(RegularFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RegularFile::~RegularFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  const FileWait wait("open", path);
  // Without O_NONBLOCK a pipe waits here for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Failed(errno);
  struct stat status {};
  const int error = fstat(fd, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode))
    return RegularFile(fd, static_cast<uint64_t>(status.st_size));
  close(fd);
  if (error != 0) return Failed(error);
  return absl::InvalidArgumentError(S_ISDIR(status.st_mode) ? "Is a directory"
                                                            : "it is not a regular file");
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) return file.status();
  std::string text;
  uint64_t bytes = file->bytes();
  // One more than it had: it may have grown, and files of /proc have none.
  for (size_t done = 0; bytes <= kMostBytes;) {
    text.resize(bytes + 1);
    const FileWait wait("read", path);
    const size_t wanted = std::min<size_t>(text.size() - done, FileWait::kMostBytes);
    const ssize_t count = read(file->fd(), text.data() + done, wanted);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(errno);
    done += static_cast<size_t>(count);
    if (count == 0) {
      text.resize(done);
      return text;
    }
    if (done == text.size()) bytes = 2 * done;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("it has ", bytes, " bytes; expected at most ", kMostBytes));
}

}  // namespace lockstep::driver
