// Records that a thread waits for a file system, so that the watchdog can name the file.
//
//    const FileWait wait("open", path);
//    const int fd = open(path.c_str(), O_RDONLY);  // on another thread: FileWait::Oldest()
//
// The failure this prevents. A folder that machines share does not answer, and a call into it never
// returns. No collective is overdue on this rank, and where others wait for work that it does alone
// they are patient. The run stands still, and nothing names the file.
//
// Make one object for each system call, and read at most kMostBytes in it. A long wait then means
// that the disk does not answer, not that the file is large. Writes are not recorded: a disk may
// take minutes to write out its buffers. Page faults of a mapped file are not recorded, either;
// MappedFile::CheckUnchanged makes a recorded call before each sample. Thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_FILE_WAIT_H_
#define LOCKSTEP_DRIVER_FILES_FILE_WAIT_H_

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <string>

namespace lockstep::driver {

class FileWait {
 public:
  // The most that one call should read.
  static constexpr size_t kMostBytes = size_t{16} << 20;

  struct Wait {
    std::string what;  // "open /shared/train.jsonl"
    std::chrono::milliseconds waited{0};
  };

  // `verb` and `path` must outlive the object.
  FileWait(const char* verb, const std::string& path);
  FileWait(const FileWait&) = delete;
  FileWait& operator=(const FileWait&) = delete;
  ~FileWait();

  // Returns the wait that began first, of all threads of this process.
  static std::optional<Wait> Oldest();

 private:
  struct Entry {
    const char* verb;
    const std::string* path;
    std::chrono::steady_clock::time_point started;
  };
  struct Table;
  static Table& Waits();

  std::list<Entry>::iterator entry_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_FILE_WAIT_H_
