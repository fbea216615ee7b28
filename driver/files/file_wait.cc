#include "driver/files/file_wait.h"

#include <mutex>

#include "absl/strings/str_cat.h"

namespace lockstep::driver {

struct FileWait::Table {
  std::mutex mutex;
  std::list<Entry> waits;  // the oldest first
};

// Never destroyed: threads that read may outlive the end of main.
FileWait::Table& FileWait::Waits() {
  static auto* const table = new Table();
  return *table;
}

FileWait::FileWait(const char* verb, const std::string& path) {
  Table& table = Waits();
  const std::lock_guard<std::mutex> lock(table.mutex);
  entry_ = table.waits.insert(table.waits.end(), {verb, &path, std::chrono::steady_clock::now()});
}

FileWait::~FileWait() {
  Table& table = Waits();
  const std::lock_guard<std::mutex> lock(table.mutex);
  table.waits.erase(entry_);
}

std::optional<FileWait::Wait> FileWait::Oldest() {
  Table& table = Waits();
  const std::lock_guard<std::mutex> lock(table.mutex);
  if (table.waits.empty()) return std::nullopt;
  const Entry& oldest = table.waits.front();
  const auto waited = std::chrono::steady_clock::now() - oldest.started;
  return Wait{absl::StrCat(oldest.verb, " ", *oldest.path),
              std::chrono::duration_cast<std::chrono::milliseconds>(waited)};
}

}  // namespace lockstep::driver
