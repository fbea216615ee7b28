#include "driver/files/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/files/file_wait.h"
#include "driver/files/regular_file.h"
#include "libdeflate.h"

namespace lockstep::driver {
namespace {

absl::Status Failed(const char* what, const std::string& path, int error) {
  return absl::UnknownError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

}  // namespace

void Checksum::Add(const void* data, size_t size) {
  if (size == 0) return;  // libdeflate takes a null pointer for a new beginning
  bytes += size;
  crc32 = libdeflate_crc32(crc32, data, size);
}

// Not mkstemp: it leaves the file to its owner alone, where others must read a run's folder too.
NewFile::NewFile(std::string path) : path_(std::move(path)), target_(path_) {
  if (path_.find('\0') != std::string::npos) {
    refusal_ = "the path has a zero byte";
    return;
  }
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    // The rename would replace a device or a pipe of that name.
    if (!S_ISREG(status.st_mode)) {
      refusal_ = "it is not a regular file";
      return;
    }
    // A link stays: what it leads to is replaced.
    if (char* const real = realpath(path_.c_str(), nullptr); real != nullptr) {
      target_ = real;
      std::free(real);
    }
  }
  std::random_device random;
  do {
    part_ = absl::StrCat(target_, ".part-", absl::Hex(random(), absl::kZeroPad8));
    file_ = std::fopen(part_.c_str(), "wbxe");
    open_error_ = file_ == nullptr ? errno : 0;
  } while (open_error_ == EEXIST);
}

NewFile::~NewFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!kept_ && !part_.empty() && open_error_ == 0) std::remove(part_.c_str());
}

absl::Status NewFile::NotOpen() const {
  if (refusal_ == nullptr) return Failed("write", path_, open_error_);
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", path_, ": ", refusal_));
}

absl::Status NewFile::Write(const void* data, size_t size) {
  if (file_ == nullptr) return NotOpen();
  // In pieces, which are still in the cache when they are written.
  constexpr size_t kPiece = size_t{1} << 18;
  const char* const from = static_cast<const char*>(data);
  for (size_t at = 0; at < size; at += kPiece) {
    const size_t piece = std::min(kPiece, size - at);
    checksum_.Add(from + at, piece);
    absl::Status status = Check(std::fwrite(from + at, 1, piece, file_) == piece);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status NewFile::Keep() {
  if (file_ == nullptr) return NotOpen();
  absl::Status status = Check(std::fflush(file_) == 0 && fsync(fileno(file_)) == 0);
  if (status.ok()) status = Check(std::rename(part_.c_str(), target_.c_str()) == 0);
  kept_ = status.ok();
  return status;
}

absl::Status NewFile::Check(bool done) const {
  return done ? absl::OkStatus() : Failed("write", path_, errno);
}

absl::StatusOr<Checksum> ChecksumOfFile(const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("cannot open ", path, ": ", file.status().message()));
  }
  Checksum checksum;
  std::vector<char> block(size_t{1} << 20);
  for (;;) {
    const FileWait wait("read", path);
    const ssize_t size = read(file->fd(), block.data(), block.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return Failed("read", path, errno);
    if (size == 0) return checksum;
    checksum.Add(block.data(), static_cast<size_t>(size));
  }
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("open", path, errno);
  // A filesystem that cannot sync folders keeps their order itself, or says EINVAL.
  const int error = fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  close(fd);
  return error == 0 ? absl::OkStatus() : Failed("sync", path, error);
}

}  // namespace lockstep::driver
