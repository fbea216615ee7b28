// Opens files that come with a model or a state, whose names may lead anywhere.
//
//    absl::StatusOr<std::string> text = ReadRegularFile("downloaded/config.json");
//
// The failure this prevents. A link in a folder that was downloaded leads to a pipe, where opening
// waits for a writer, or to /dev/zero, which has no end. The run hangs or fills the memory before
// anything is checked. Here both are errors at once, and so is a folder.
//
// Thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_REGULAR_FILE_H_
#define LOCKSTEP_DRIVER_FILES_REGULAR_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep::driver {

// A file that is open for reading.
class RegularFile {
 public:
  // Returns NotFound if the name leads nowhere, InvalidArgument if it leads to a folder, a pipe or
  // a device, and Unknown if the file cannot be opened. The message is the reason, without the
  // path.
  static absl::StatusOr<RegularFile> Open(const std::string& path);

  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&& other) noexcept;
  ~RegularFile();

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }

 private:
  RegularFile(int fd, uint64_t bytes) : fd_(fd), bytes_(bytes) {}

  int fd_;
  uint64_t bytes_;
};

// Returns the content of a file, which is less than 2 GiB: a string of Lua holds no more. Returns
// the errors of RegularFile::Open, and ResourceExhausted for a larger file.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_REGULAR_FILE_H_
