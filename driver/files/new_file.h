// A file that takes its name once it is complete: nobody reads half of it, and none is left behind.
//
//   NewFile file("runs/a/model.safetensors");
//   absl::Status status = file.Write(data, size);
//   if (status.ok()) status = file.Keep();
//
// What was written before Keep is on the disk when Keep returns; that the name is there too after a
// power failure, SyncFolder says. Thread: used by one thread.

#ifndef LOCKSTEP_DRIVER_FILES_NEW_FILE_H_
#define LOCKSTEP_DRIVER_FILES_NEW_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::driver {

// Of what a file holds: how much, and the CRC-32 of zlib and gzip.
struct Checksum {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;

  void Add(const void* data, size_t size);
};

class NewFile {
 public:
  explicit NewFile(std::string path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();  // removes what was not kept

  // Unknown, with the path and the system's reason, where the disk is full or the folder not there.
  absl::Status Write(const void* data, size_t size);
  absl::Status Keep();

  const Checksum& checksum() const { return checksum_; }  // of what was written so far

 private:
  absl::Status Check(bool done) const;

  std::string path_;
  std::string part_;
  std::FILE* file_ = nullptr;
  int open_error_ = 0;
  bool kept_ = false;
  Checksum checksum_;
};

// Of a file as it is on the disk.
absl::StatusOr<Checksum> ChecksumOfFile(const std::string& path);

// Brings the names in a folder to the disk: files made, renamed and removed.
absl::Status SyncFolder(const std::string& path);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_NEW_FILE_H_
