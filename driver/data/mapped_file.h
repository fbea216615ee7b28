// A file that is mapped for reading, and whether it has changed since.
//
//   absl::StatusOr<std::shared_ptr<const MappedFile>> file = MappedFile::Open("train.jsonl");
//   Parse((*file)->bytes());
//   absl::Status status = (*file)->CheckUnchanged();
//
// An index is valid only while its file is unchanged. A file is taken for the same while
// its size, its time of modification and its inode stay. A file that is shortened in place while
// its bytes are read ends the process with SIGBUS, as with every mapped file; CheckUnchanged before
// each read makes this unlikely, not impossible. Thread-safe once open.

#ifndef LOCKSTEP_DRIVER_DATA_MAPPED_FILE_H_
#define LOCKSTEP_DRIVER_DATA_MAPPED_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::data {

struct FileIdentity {
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

class MappedFile {
 public:
  // Returns NotFound or Unknown, with the path and the system's reason, if the file cannot be
  // opened, and InvalidArgument if it is a folder.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }
  absl::string_view bytes() const { return {data_, static_cast<size_t>(identity_.bytes)}; }

  // Returns FailedPrecondition, with what is different, if the path leads to another file now, or
  // to this one after a change.
  absl::Status CheckUnchanged() const;

 private:
  MappedFile(std::string path, const FileIdentity& identity, const char* data)
      : path_(std::move(path)), identity_(identity), data_(data) {}

  std::string path_;
  FileIdentity identity_;
  const char* data_;  // nullptr if the file is empty
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_MAPPED_FILE_H_
