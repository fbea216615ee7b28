#include "driver/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "driver/files/file_wait.h"

namespace lockstep::data {
namespace {

absl::Status Failed(const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot open ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::UnknownError(message);
}

FileIdentity IdentityOf(const struct stat& status) {
  return {static_cast<uint64_t>(status.st_size),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
          static_cast<uint64_t>(status.st_ino)};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const driver::FileWait wait("open", path);
  // Without O_NONBLOCK a pipe waits here for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Failed(path, errno);
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    const int error = errno;
    close(fd);
    return Failed(path, error);
  }
  if (!S_ISREG(status.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat("cannot open ", path, ": it is not a regular file"));
  }
  const FileIdentity identity = IdentityOf(status);
  void* data = nullptr;
  if (identity.bytes > 0) {
    data = mmap(nullptr, static_cast<size_t>(identity.bytes), PROT_READ, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  close(fd);
  if (data == MAP_FAILED) {
    if (error != ENOMEM) return Failed(path, error);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", path,
                     ": the process has no room for another mapping (vm.max_map_count); put the "
                     "samples in fewer files"));
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, identity, static_cast<const char*>(data)));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), static_cast<size_t>(identity_.bytes));
}

absl::Status MappedFile::CheckUnchanged() const {
  const driver::FileWait wait("look at", path_);
  struct stat status {};
  const char* const kAdvice = "; a file must stay as it is while a run reads it";
  if (stat(path_.c_str(), &status) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " cannot be found any more (", std::strerror(errno), ")", kAdvice));
  }
  const FileIdentity now = IdentityOf(status);
  if (now == identity_) return absl::OkStatus();
  const std::string change =
      now.bytes != identity_.bytes
          ? absl::StrCat("it had ", identity_.bytes, " bytes, and has ", now.bytes)
      : now.inode != identity_.inode ? "another file has taken its name"
                                     : "its time of modification is another";
  return absl::FailedPreconditionError(
      absl::StrCat(path_, " has changed since it was opened: ", change, kAdvice));
}

}  // namespace lockstep::data
