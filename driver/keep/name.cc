#include "driver/keep/name.h"

#include <fstream>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lockstep::driver {

std::string KeeperName(const std::string& run_dir) {
  const std::string path = absl::StrCat(run_dir, "/keep.id");
  constexpr size_t kDigits = 16;
  std::string id;
  std::ifstream(path) >> id;
  bool is_valid = id.size() == kDigits;
  for (const char letter : id) is_valid = is_valid && absl::ascii_isxdigit(letter);
  if (!is_valid) {
    std::random_device random;
    id = absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
    std::ofstream file(path);
    file << id << "\n";
    if (!file.flush()) return "";
  }
  return absl::StrCat("lockstep-keep-", id);
}

}  // namespace lockstep::driver
