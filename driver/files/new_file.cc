#include "driver/files/new_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/files/file_job.h"
#include "driver/files/file_wait.h"
#include "driver/files/regular_file.h"
#include "libdeflate.h"

namespace lockstep::driver {
namespace {

// A piece is still in the processor's cache when it is written. A direct write begins and ends at a
// block of the disk.
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kPieceBytes = size_t{1} << 18;
constexpr size_t kBlockBytes = 4096;

// Filesystems of a disk of this machine. Those of a network send what is in the cache in many
// messages at once, where a direct write waits for each.
bool IsOnADisk(int fd) {
  struct statfs filesystem {};
  if (fstatfs(fd, &filesystem) != 0) return false;
  return filesystem.f_type == EXT4_SUPER_MAGIC || filesystem.f_type == XFS_SUPER_MAGIC;
}

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
NewFile::NewFile(std::string path, Way way)
    : path_(std::move(path)), target_(path_), is_direct_(way == kDirect) {
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
    fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    open_error_ = fd_ < 0 ? errno : 0;
  } while (open_error_ == EEXIST);
  is_direct_ = is_direct_ && fd_ >= 0 && IsOnADisk(fd_) && fcntl(fd_, F_SETFL, O_DIRECT) == 0;
}

NewFile::~NewFile() {
  if (fd_ >= 0) close(fd_);
  if (!kept_ && !part_.empty() && open_error_ == 0) std::remove(part_.c_str());
}

absl::Status NewFile::NotOpen() const {
  if (refusal_ == nullptr) return Failed("write", path_, open_error_);
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", path_, ": ", refusal_));
}

void NewFile::UseTheCache() {
  is_direct_ = false;
  fcntl(fd_, F_SETFL, 0);
}

absl::Status NewFile::WriteOut(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd_, data, size);
    if (written > 0) {
      data += written;
      size -= static_cast<size_t>(written);
    } else if (written < 0 && errno == EINVAL && is_direct_) {
      UseTheCache();  // a disk of larger blocks, or a write before this one ended within a block
    } else if (written == 0 || errno != EINTR) {
      return Check(false);
    }
  }
  return absl::OkStatus();
}

absl::Status NewFile::Write(const void* data, size_t size) {
  if (fd_ < 0) return NotOpen();
  if (buffer_ == nullptr) {
    buffer_.reset(static_cast<char*>(std::aligned_alloc(kBlockBytes, kBufferBytes)));
    if (buffer_ == nullptr) return Check(false);
  }
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const bool is_copied = is_direct_ || buffered_ > 0 || size < kBufferBytes;
    const size_t piece = std::min({size, kPieceBytes, kBufferBytes - buffered_});
    checksum_.Add(from, piece);
    absl::Status status;
    if (is_copied) {
      std::memcpy(buffer_.get() + buffered_, from, piece);
      buffered_ += piece;
      if (buffered_ == kBufferBytes) status = WriteOut(buffer_.get(), kBufferBytes);
      if (buffered_ == kBufferBytes && status.ok()) buffered_ = 0;
    } else {
      status = WriteOut(from, piece);
    }
    if (!status.ok()) return status;
    from += piece;
    size -= piece;
    if (buffered_ == 0) FileJob::GiveWay();
  }
  return absl::OkStatus();
}

absl::Status NewFile::Keep() {
  if (fd_ < 0) return NotOpen();
  if (is_direct_ && buffered_ % kBlockBytes != 0) UseTheCache();
  absl::Status status = WriteOut(buffer_.get(), buffered_);
  if (status.ok()) status = Check(fsync(fd_) == 0);
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
