#include "driver/images/ppm.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lockstep::images {
namespace {

constexpr int64_t kMaxSide = 1 << 20;  // so that no product of sizes overflows

// Reads a number of at least 1 and the character behind it. Returns 0 for anything else.
int64_t ReadSide(absl::string_view& rest, char end) {
  int64_t value = 0;
  while (!rest.empty() && rest[0] >= '0' && rest[0] <= '9' && value <= kMaxSide) {
    value = value * 10 + (rest[0] - '0');
    rest.remove_prefix(1);
  }
  if (value > kMaxSide || rest.empty() || rest[0] != end) return 0;
  rest.remove_prefix(1);
  return value;
}

}  // namespace

absl::StatusOr<std::vector<PpmFrame>> FindPpmFrames(absl::string_view bytes) {
  std::vector<PpmFrame> frames;
  absl::string_view rest = bytes;
  while (!rest.empty()) {
    const bool is_ppm = absl::ConsumePrefix(&rest, "P6\n");
    PpmFrame frame;
    if (is_ppm) {
      frame.width = ReadSide(rest, ' ');
      frame.height = ReadSide(rest, '\n');
    }
    if (frame.width == 0 || frame.height == 0 || !absl::ConsumePrefix(&rest, "255\n")) {
      return absl::InvalidArgumentError(
          absl::StrCat("frame ", frames.size(), " does not begin as an 8-bit PPM file"));
    }
    frame.begin = static_cast<int64_t>(bytes.size() - rest.size());
    const int64_t size = frame.height * frame.width * 3;
    if (static_cast<int64_t>(rest.size()) < size) {
      return absl::InvalidArgumentError(absl::StrCat("frame ", frames.size(), " has ", rest.size(),
                                                     " of ", size, " bytes of pixels"));
    }
    rest.remove_prefix(size);
    frames.push_back(frame);
  }
  return frames;
}

}  // namespace lockstep::images
