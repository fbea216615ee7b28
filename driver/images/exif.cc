// Reads the orientation tag of EXIF data. The data is a TIFF file; only its first directory is
// read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "driver/images/formats.h"

namespace lockstep::images {
namespace {

constexpr uint64_t kOrientationTag = 0x0112;
constexpr size_t kEntryBytes = 12;
constexpr size_t kValueBytes = 4;  // of an entry; a larger value lies elsewhere

// Returns the bytes of an integer type of TIFF, or 0 for any other type.
uint64_t NumberBytes(uint64_t type) {
  switch (type) {
    case 6: return 1;   // SBYTE
    case 3:             // SHORT
    case 8: return 2;   // SSHORT
    case 4:             // LONG
    case 9: return 4;   // SLONG
    default: return 0;  // In Pillow BYTE is a string.
  }
}

// Reads numbers at an offset, in either byte order. Data outside is 0, which no valid entry has.
class Tiff {
 public:
  explicit Tiff(absl::string_view bytes) : bytes_(bytes) {
    little_ = absl::StartsWith(bytes, absl::string_view("II\x2a\0", 4));
    valid_ = little_ || absl::StartsWith(bytes, absl::string_view("MM\0\x2a", 4));
  }

  bool valid() const { return valid_; }
  size_t size() const { return bytes_.size(); }

  bool Has(size_t at, uint64_t size) const {
    return at <= bytes_.size() && size <= bytes_.size() - at;
  }

  uint64_t Number(size_t at, size_t size) const {
    if (!Has(at, size)) return 0;
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value = value << 8 | static_cast<unsigned char>(bytes_[at + (little_ ? size - 1 - i : i)]);
    return value;
  }

 private:
  absl::string_view bytes_;
  bool little_ = false;
  bool valid_ = false;
};

}  // namespace

int ExifOrientation(absl::string_view exif) {
  constexpr absl::string_view kPrefix("Exif\0\0", 6);
  if (absl::StartsWith(exif, kPrefix)) exif.remove_prefix(kPrefix.size());
  const Tiff tiff(exif);
  if (!tiff.valid()) return 1;
  const size_t directory = tiff.Number(4, 4);
  const size_t num_entries = tiff.Number(directory, 2);
  for (size_t i = 0; i < num_entries; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    if (entry > tiff.size() || tiff.size() - entry < kEntryBytes) break;
    if (tiff.Number(entry, 2) != kOrientationTag) continue;
    const uint64_t size = NumberBytes(tiff.Number(entry + 2, 2));
    const uint64_t count = tiff.Number(entry + 4, 4);
    const size_t place =
        count * size <= kValueBytes ? entry + 8 : static_cast<size_t>(tiff.Number(entry + 8, 4));
    // Pillow skips an entry without values, or with more than there are.
    if (size > 0 && (count == 0 || !tiff.Has(place, count * size))) continue;
    const uint64_t value = tiff.Number(place, size);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

// Orientations 5 to 8 exchange rows and columns. Each orientation is a walk over the stored pixels:
// where the first upright pixel lies, and how far it is to the next one in a row and in a column.
Image Upright(StoredImage stored) {
  Image& from = stored.image;
  if (stored.orientation == 1) return std::move(from);
  const int64_t h = from.height;
  const int64_t w = from.width;
  struct Walk {
    int64_t start, right, down;
  };
  const int64_t last_row = (h - 1) * w;
  const Walk walks[] = {{w - 1, -1, w},              // 2: mirrored left to right
                        {last_row + w - 1, -1, -w},  // 3: turned by 180 degrees
                        {last_row, 1, -w},           // 4: mirrored top to bottom
                        {0, w, 1},                   // 5: rows and columns exchanged
                        {last_row, -w, 1},           // 6: to be turned clockwise
                        {last_row + w - 1, -w, -1},  // 7: exchanged along the other diagonal
                        {w - 1, w, -1}};             // 8: to be turned counter-clockwise
  const Walk& walk = walks[stored.orientation - 2];
  Image to;
  to.height = stored.orientation >= 5 ? w : h;
  to.width = stored.orientation >= 5 ? h : w;
  to.pixels = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(h * w * 3));
  uint8_t* out = to.pixels.get();
  for (int64_t y = 0; y < to.height; ++y) {
    const uint8_t* in = from.pixels.get() + 3 * (walk.start + y * walk.down);
    for (int64_t x = 0; x < to.width; ++x, in += 3 * walk.right, out += 3) {
      out[0] = in[0];
      out[1] = in[1];
      out[2] = in[2];
    }
  }
  return to;
}

}  // namespace lockstep::images
