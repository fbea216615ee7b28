#include "driver/keep/slab.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

absl::Status Failed(uint64_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot get ", bytes, " bytes of shared memory: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<Slab> Slab::Make(uint64_t bytes) {
  const int fd = memfd_create("lockstep-snapshot", MFD_CLOEXEC);
  if (fd < 0) return Failed(bytes, errno);
  // Otherwise the pages come at the first write, which would end the process if there are none.
  int error;
  do error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  if (error == 0) return Take(fd);
  close(fd);
  return Failed(bytes, error);
}

absl::StatusOr<Slab> Slab::Take(int fd) {
  struct stat status {};
  void* data = MAP_FAILED;
  if (fstat(fd, &status) == 0)
    data = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED,
                fd, 0);
  if (data != MAP_FAILED)
    return Slab(fd, static_cast<char*>(data), static_cast<uint64_t>(status.st_size));
  const int error = errno;
  close(fd);
  return Failed(static_cast<uint64_t>(status.st_size), error);
}

Slab::Slab(Slab&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Slab& Slab::operator=(Slab&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Slab::~Slab() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

std::string Slab::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

}  // namespace lockstep::driver
