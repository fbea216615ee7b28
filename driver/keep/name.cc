#include "driver/keep/name.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "driver/keep/message.h"

namespace lockstep::driver {
namespace {

// Returns the 16 digits in the file, or "" if it has none.
std::string ReadId(const std::string& path) {
  constexpr size_t kDigits = 16;
  std::string id;
  std::ifstream(path) >> id;
  bool is_valid = id.size() == kDigits;
  for (const char letter : id) is_valid = is_valid && absl::ascii_isxdigit(letter);
  return is_valid ? id : "";
}

// Writes a new number to the file, which appears as a whole. Leaves a file that is there alone
// unless `replaces`.
void MakeId(const std::string& path, bool replaces) {
  std::random_device random;
  const std::string id =
      absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
  const std::string own = absl::StrCat(path, ".", id);
  std::ofstream file(own);
  file << id << "\n";
  file.close();
  if (file && replaces) {
    std::rename(own.c_str(), path.c_str());
  } else if (file) {
    (void)!link(own.c_str(), path.c_str());  // another process may have been first
  }
  unlink(own.c_str());
}

}  // namespace

std::string KeeperName(const std::string& run_dir) {
  const std::string path = absl::StrCat(run_dir, "/keep.id");
  std::string id = ReadId(path);
  // The second time: the file holds no number, or the file system has no links.
  for (const bool replaces : {false, true}) {
    if (!id.empty()) break;
    MakeId(path, replaces);
    id = ReadId(path);
  }
  if (id.empty()) return "";
  return absl::StrCat("lockstep-keep-", id, "-", kProtocol);
}

}  // namespace lockstep::driver
