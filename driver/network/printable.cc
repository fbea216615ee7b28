#include "driver/network/printable.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace lockstep::driver {
namespace {

// Returns the length of the printable character at `begin`. Returns 0 for a control character (C0,
// DEL, C1), or for bytes that are not UTF-8.
size_t PrintableLength(const std::string& text, size_t begin) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[begin + i]); };
  if (byte(0) < 0x80)
    return (byte(0) >= 0x20 && byte(0) != 0x7f) || byte(0) == '\n' || byte(0) == '\t' ? 1 : 0;
  size_t length = 0;
  uint32_t code = 0;
  uint32_t smallest = 0;  // a smaller code has a shorter form
  if ((byte(0) & 0xe0) == 0xc0) {
    length = 2, code = byte(0) & 0x1f, smallest = 0xa0;  // U+0080 to U+009F are the C1 controls
  } else if ((byte(0) & 0xf0) == 0xe0) {
    length = 3, code = byte(0) & 0x0f, smallest = 0x800;
  } else if ((byte(0) & 0xf8) == 0xf0) {
    length = 4, code = byte(0) & 0x07, smallest = 0x10000;
  }
  if (length == 0 || text.size() - begin < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code >= smallest && code <= 0x10ffff && !is_surrogate ? length : 0;
}

}  // namespace

std::string Printable(const std::string& text) {
  std::string printable;
  for (size_t i = 0; i < text.size();) {
    const size_t length = PrintableLength(text, i);
    if (length > 0) {
      printable.append(text, i, length);
      i += length;
    } else {
      absl::StrAppend(&printable, "\\x",
                      absl::Hex(static_cast<unsigned char>(text[i]), absl::kZeroPad2));
      ++i;
    }
  }
  return printable;
}

}  // namespace lockstep::driver
