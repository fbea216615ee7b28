// A file that gets its name once it is complete. Other processes never read half of it, and a
// failed write leaves nothing behind. Until it is complete it is NAME.part-XXXXXX, which no other
// process has: not on another machine either.
//
//    NewFile file("runs/a/model.safetensors");
//    absl::Status status = file.Write(data, size);
//    if (status.ok()) status = file.Keep();
//
// A large file that nobody reads soon is better written past the kernel's cache, with
// NewFile::kDirect. The disk then reads our memory. The kernel copies nothing and looks for no free
// memory, which takes most of the time. Filesystems other than ext4 and XFS use the cache.
//
// When Keep returns, the content is on the disk. SyncFolder makes sure that the name survives a
// power failure too. Thread: used by one thread.

#ifndef LOCKSTEP_DRIVER_FILES_NEW_FILE_H_
#define LOCKSTEP_DRIVER_FILES_NEW_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::driver {

// The size of a file's content, and its CRC-32 as in zlib and gzip.
struct Checksum {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;

  void Add(const void* data, size_t size);
};

class NewFile {
 public:
  enum Way { kCached, kDirect };

  explicit NewFile(std::string path, Way way = kCached);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();  // removes the file unless Keep has succeeded

  // Return Unknown, with the path and the system's reason, if the disk is full or the folder does
  // not exist; InvalidArgument if the path leads to a device or a pipe, or has a zero byte.
  absl::Status Write(const void* data, size_t size);
  absl::Status Keep();

  const Checksum& checksum() const { return checksum_; }  // of the bytes written so far

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  absl::Status Check(bool done) const;
  absl::Status NotOpen() const;
  void UseTheCache();
  absl::Status WriteOut(const char* data, size_t size);

  std::string path_;
  std::string target_;  // where the path leads: a link is followed
  std::string part_;
  const char* refusal_ = nullptr;
  int fd_ = -1;
  int open_error_ = 0;
  bool is_direct_;
  std::unique_ptr<char, Free> buffer_;  // what is not written yet
  size_t buffered_ = 0;                 // bytes of it
  bool kept_ = false;
  Checksum checksum_;
};

// Returns the checksum of a file on the disk.
absl::StatusOr<Checksum> ChecksumOfFile(const std::string& path);

// Writes the names in a folder to the disk: files created, renamed and removed.
absl::Status SyncFolder(const std::string& path);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_NEW_FILE_H_
