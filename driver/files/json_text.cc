#include "driver/files/json_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "nlohmann/json.hpp"

namespace lockstep::driver {
namespace {

// Returns the text in quotes, or "" if it is not UTF-8.
std::string Quoted(absl::string_view text) {
  try {
    return nlohmann::json(std::string(text)).dump();
  } catch (const nlohmann::json::type_error&) {
    return "";
  }
}

}  // namespace

void JsonWriter::NewLine() {
  if (indent_ <= 0) return;
  text_.push_back('\n');
  text_.append(open_.size() * static_cast<size_t>(indent_), ' ');
}

// Writes the value's first token, after the comma that separates it from the value before it.
void JsonWriter::Begin(absl::string_view token) {
  if (!open_.empty() && !after_key_) {
    if (open_.back()) text_.push_back(',');
    open_.back() = true;
    NewLine();
  }
  after_key_ = false;
  absl::StrAppend(&text_, token);
}

void JsonWriter::Double(double value) {
  const double size = std::abs(value);
  const bool is_fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 32> digits;
  const auto end =
      std::to_chars(digits.begin(), digits.end(), value,
                    is_fixed ? std::chars_format::fixed : std::chars_format::scientific);
  const absl::string_view text(digits.data(), static_cast<size_t>(end.ptr - digits.data()));
  const bool is_whole = text.find_first_of(".e") == absl::string_view::npos;
  Begin(text);
  if (is_whole) text_ += ".0";
}

bool JsonWriter::String(absl::string_view text) {
  const std::string quoted = Quoted(text);
  if (!quoted.empty()) Begin(quoted);
  return !quoted.empty();
}

bool JsonWriter::Key(absl::string_view name) {
  if (!String(name)) return false;
  text_ += indent_ > 0 ? ": " : ":";
  after_key_ = true;
  return true;
}

void JsonWriter::Start(char bracket) {
  Begin(absl::string_view(&bracket, 1));
  open_.push_back(false);
}

void JsonWriter::End(char bracket) {
  const bool has_elements = open_.back();
  open_.pop_back();
  if (has_elements) NewLine();
  text_.push_back(bracket);
}

std::string JsonPlace(absl::string_view text, size_t offset) {
  const absl::string_view before = text.substr(0, offset);
  const bool has_lines = text.find('\n') < text.size() - 1;
  return absl::StrCat(
      " (",
      has_lines ? absl::StrCat("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", ")
                : "",
      "at byte ", offset, " of ", text.size(), ")");
}

// nlohmann writes "[json.exception.parse_error.101] parse error at line 1, column 4: MISTAKE; last
// read: 'BYTES'", and repeats bytes that may not be UTF-8.
std::string JsonMistake(absl::string_view message, size_t bytes_read, absl::string_view text) {
  const std::string place =
      JsonPlace(text, std::min(bytes_read > 0 ? bytes_read - 1 : 0, text.size()));
  if (text.find_first_not_of(" \t\r\n") == absl::string_view::npos)
    return absl::StrCat("the text is empty", place);
  message = message.substr(0, message.find("; last read: "));
  const size_t column = message.find("column ");
  if (column != absl::string_view::npos) {
    message.remove_prefix(std::min(message.find(": ", column) + 2, message.size()));
  } else {
    message.remove_prefix(message.find("] ") + 2);
  }
  return absl::StrCat(message, place);
}

}  // namespace lockstep::driver
