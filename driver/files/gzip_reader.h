// Reads a file that may be gzip: the text of all its members, one after the other, or the bytes of
// a file that is not gzip.
//
//   auto reader = GzipReader::Open("train.jsonl.gz");
//   char block[4096];
//   absl::StatusOr<size_t> size = (*reader)->Read(block, sizeof(block));  // 0 at the end
//
// zlib's gzread ends silently where a second member is damaged: the rest of the data would be
// missing. Here what follows a member must be a member, or zeros up to the end of the file, as
// gzip itself has it.
//
// A file that is shortened while it is read would end early, too. So at its end a file that is
// smaller than when it was opened is an error. A file may grow; a pipe has no size.
//
// Not thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_GZIP_READER_H_
#define LOCKSTEP_DRIVER_FILES_GZIP_READER_H_

#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::driver {

class GzipReader {
 public:
  // Errors name the file.
  static absl::StatusOr<std::unique_ptr<GzipReader>> Open(const std::string& path);
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;
  ~GzipReader();

  // Returns how many bytes it wrote, fewer than `size` only at the end. Errors name the file, and
  // for damaged gzip the byte at which the member or the stray bytes begin.
  absl::StatusOr<size_t> Read(char* to, size_t size);

 private:
  enum class State { kStart, kPlain, kMember, kBetween, kEnd };
  GzipReader(std::string path, FILE* file);

  // Reads the next input. Leaves none at the end of the file.
  absl::Status Refill();
  absl::Status CheckSize() const;
  absl::Status BeginMember();
  absl::Status Step();
  absl::Status Damaged(absl::string_view problem) const;
  uint64_t position() const { return read_ - stream_.avail_in; }

  std::string path_;
  FILE* file_;
  std::unique_ptr<unsigned char[]> input_;
  z_stream stream_{};
  int64_t bytes_ = 0;    // size of the file when it was opened; 0 for a pipe
  uint64_t read_ = 0;    // bytes of the file so far
  uint64_t member_ = 0;  // where the member begins
  State state_ = State::kStart;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_GZIP_READER_H_
