// A file that grows by whole records: the lines of metrics.jsonl, the frames of an event file.
//
//    absl::StatusOr<AppendFile> file = AppendFile::Open("runs/x/metrics.jsonl");
//    if (absl::Status status = file->Append("{\"step\": 0}\n"); !status.ok()) {
//      Warn(status.message());  // nothing was written; later records may fit again
//    }
//
// Without it, a disk that fills up in the middle of a record leaves a torn line. And a run whose
// folder was deleted, moved or unmounted writes for days to a file that nobody finds.
//
// Not thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_APPEND_FILE_H_
#define LOCKSTEP_DRIVER_FILES_APPEND_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::driver {

class AppendFile {
 public:
  enum class Existing { kAppend, kRefuse };

  // Opens `path`, and creates it if there is no such file. Returns an error with the path and the
  // system's reason; with kRefuse also if the file exists.
  static absl::StatusOr<AppendFile> Open(const std::string& path,
                                         Existing existing = Existing::kAppend);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;
  ~AppendFile();

  // Writes all of `record` at the end of the file, or nothing. Returns an error with the path and
  // the reason: NotFound if the path no longer names
  // this file, Unavailable if the system refused the write.
  absl::Status Append(absl::string_view record);

  const std::string& path() const { return path_; }

 private:
  AppendFile(std::string path, int file);

  std::string path_;
  int file_ = -1;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_APPEND_FILE_H_
