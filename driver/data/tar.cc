#include "driver/data/tar.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lockstep::data {
namespace {

constexpr uint64_t kBlock = 512;

// A field of a header, up to its first zero byte.
absl::string_view Text(absl::string_view header, size_t at, size_t size) {
  const absl::string_view field = header.substr(at, size);
  return field.substr(0, field.find('\0'));
}

// A number in octal digits, or, where its first bit is set, in big-endian bytes.
std::optional<uint64_t> Number(absl::string_view field) {
  uint64_t value = 0;
  if ((field[0] & 0x80) != 0) {
    for (size_t i = 0; i < field.size(); ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<uint8_t>(i == 0 ? field[i] & 0x7f : field[i]);
    }
    return value;
  }
  for (const char c : absl::StripAsciiWhitespace(field.substr(0, field.find('\0')))) {
    if (c < '0' || c > '7') return std::nullopt;
    value = value * 8 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

// The sum of the header's bytes, its own field taken as spaces.
bool HasRightChecksum(absl::string_view header) {
  constexpr size_t kAt = 148;
  constexpr size_t kSize = 8;
  uint64_t sum = kSize * ' ';
  for (size_t i = 0; i < header.size(); ++i) {
    if (i < kAt || i >= kAt + kSize) sum += static_cast<uint8_t>(header[i]);
  }
  return Number(header.substr(kAt, kSize)) == sum;
}

// Records "23 path=dir/0001.jpg\n"; the first number counts the whole record.
bool ReadPax(absl::string_view records, std::string& path, int64_t& size) {
  while (!records.empty()) {
    const size_t space = records.find(' ');
    uint64_t length = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtoi(records.substr(0, space), &length) ||
        length <= space + 1 || length > records.size()) {
      return false;
    }
    const absl::string_view record = records.substr(space + 1, length - space - 2);
    records.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) return false;
    const absl::string_view value = record.substr(equals + 1);
    if (record.substr(0, equals) == "path") path = std::string(value);
    if (record.substr(0, equals) == "size") {
      if (!absl::SimpleAtoi(value, &size) || size < 0) return false;
    }
  }
  return true;
}

bool IsZero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

std::string NameOf(absl::string_view header) {
  const absl::string_view name = Text(header, 0, 100);
  const bool is_posix = header.substr(257, 6) == absl::string_view("ustar\0", 6);
  const absl::string_view prefix = is_posix ? Text(header, 345, 155) : absl::string_view();
  return prefix.empty() ? std::string(name) : absl::StrCat(prefix, "/", name);
}

absl::Status Invalid(uint64_t at, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem, " (at byte ", at, ")"));
}

}  // namespace

absl::StatusOr<std::optional<TarMember>> NextTarMember(absl::string_view archive, uint64_t at) {
  TarMember member;
  member.at = at;
  std::string long_name;
  int64_t long_size = -1;  // none
  for (;;) {
    if (at == archive.size())
      return Invalid(at, "the archive is cut short: its end, two blocks of zeros, is missing");
    if (at > archive.size() || archive.size() - at < kBlock)
      return Invalid(at, "the archive is cut short: a header should be here");
    const absl::string_view header = archive.substr(at, kBlock);
    if (IsZero(header)) {
      // Some programs write one block of zeros. Behind a header that is lost a second would not be.
      if (IsZero(archive.substr(at + kBlock, kBlock))) return std::optional<TarMember>();
      return Invalid(at, "expected a tar header, and found a lone block of zeros");
    }
    if (!HasRightChecksum(header)) return Invalid(at, "expected a tar header");
    const std::optional<uint64_t> header_size = Number(header.substr(124, 12));
    const char type = header[156];
    const bool is_file = type == '0' || type == '\0' || type == '7';
    if (!header_size.has_value()) return Invalid(at, "the size of a member is not a number");
    const uint64_t size =
        is_file && long_size >= 0 ? static_cast<uint64_t>(long_size) : *header_size;
    const uint64_t begin = at + kBlock;
    if (size > archive.size() - begin) {
      return Invalid(at, absl::StrCat("the archive is cut short: ", NameOf(header), " has ", size,
                                      " bytes, and ", archive.size() - begin, " are left"));
    }
    const uint64_t next =
        std::min<uint64_t>(archive.size(), begin + (size + kBlock - 1) / kBlock * kBlock);
    if (is_file) {
      member.name = long_name.empty() ? NameOf(header) : long_name;
      member.begin = begin;
      member.size = size;
      member.next = next;
      return std::optional<TarMember>(member);
    }
    switch (type) {
      case 'L': long_name = std::string(Text(archive, begin, size)); break;
      case 'x':
        if (!ReadPax(archive.substr(begin, size), long_name, long_size))
          return Invalid(at, "a pax header cannot be read");
        break;
      case '5':  // a folder
        long_name.clear();
        long_size = -1;
        member.at = next;
        break;
      case 'g':
      case 'K': break;
      default:
        return Invalid(at, absl::StrCat(long_name.empty() ? NameOf(header) : long_name,
                                        " is a link, a device or a sparse file (type '",
                                        absl::string_view(&type, 1),
                                        "'); expected regular files and folders"));
    }
    at = next;
  }
}

TarField SplitTarName(absl::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == absl::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == base) return {};
  if (dot == absl::string_view::npos) return {name, ""};
  return {name.substr(0, dot), absl::AsciiStrToLower(name.substr(dot + 1))};
}

}  // namespace lockstep::data
