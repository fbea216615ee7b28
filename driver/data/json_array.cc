#include "driver/data/json_array.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep::data {
namespace {

constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

size_t SkipSpaces(absl::string_view bytes, size_t at) {
  while (at < bytes.size() && IsSpace(bytes[at])) ++at;
  return at;
}

// Returns the place of the first byte that is neither a space nor of a byte order mark.
size_t BeginOf(absl::string_view bytes) {
  return SkipSpaces(bytes, absl::StartsWith(bytes, kByteOrderMark) ? kByteOrderMark.size() : 0);
}

// Returns the place behind the string that begins at `at`, or npos.
size_t EndOfString(absl::string_view bytes, size_t at) {
  for (++at; at < bytes.size(); ++at) {
    if (bytes[at] == '\\') {
      ++at;
    } else if (bytes[at] == '"') {
      return at + 1;
    }
  }
  return absl::string_view::npos;
}

}  // namespace

bool IsJsonArray(absl::string_view bytes) {
  const size_t begin = BeginOf(bytes);
  return begin < bytes.size() && bytes[begin] == '[';
}

size_t EndOfJson(absl::string_view bytes, size_t at) {
  int64_t depth = 0;
  while (at < bytes.size()) {
    const char c = bytes[at];
    if (c == '"') {
      at = EndOfString(bytes, at);
      if (depth == 0 || at == absl::string_view::npos) return at;
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']' || c == '}' || IsSpace(c))) return at;
    if (c == '{' || c == '[') ++depth;
    const bool closes = c == '}' || c == ']';
    ++at;
    if (closes && --depth == 0) return at;
  }
  return depth == 0 ? at : absl::string_view::npos;
}

absl::StatusOr<std::vector<uint64_t>> FindElements(absl::string_view bytes) {
  std::vector<uint64_t> begins;
  const auto invalid = [&](absl::string_view problem, size_t at) {
    return absl::InvalidArgumentError(
        absl::StrCat("the array ", problem, " element ", begins.size(), " (at byte ", at + 1, ")"));
  };
  size_t at = SkipSpaces(bytes, BeginOf(bytes) + 1);
  const bool is_empty = at < bytes.size() && bytes[at] == ']';
  while (!is_empty) {
    const size_t end = at < bytes.size() ? EndOfJson(bytes, at) : absl::string_view::npos;
    if (end == at) return invalid("has no value behind the comma after", at);
    begins.push_back(at);
    if (end == absl::string_view::npos) return invalid("has no end: the file ends in", at);
    at = SkipSpaces(bytes, end);
    if (at < bytes.size() && bytes[at] == ']') break;
    if (at >= bytes.size()) return invalid("has no end: the file ends after", at);
    if (bytes[at] != ',') return invalid("has no comma after", at);
    at = SkipSpaces(bytes, at + 1);
  }
  at = SkipSpaces(bytes, at + 1);
  if (at < bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("something follows the array (at byte ", at + 1, ")"));
  }
  return begins;
}

}  // namespace lockstep::data
