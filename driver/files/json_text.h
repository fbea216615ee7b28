// JSON as text: a writer, and messages for text that nlohmann's parser refuses.
//
//   JsonWriter writer(/*indent=*/0);
//   writer.StartObject();
//   writer.Key("shape");
//   writer.StartArray();
//   writer.Integer(3);
//   writer.EndArray();
//   writer.EndObject();
//   std::string text = std::move(writer).text();  // {"shape":[3]}
//
// The writer needs no tree of values: nlohmann has a parser without one, but no such writer.
// Not thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_JSON_TEXT_H_
#define LOCKSTEP_DRIVER_FILES_JSON_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep::driver {

// Writes values in the order of the calls. The caller closes what it opens, and writes a key before
// each value of an object.
class JsonWriter {
 public:
  // Writes one line, or indents by `indent` spaces where that is above 0.
  explicit JsonWriter(int64_t indent) : indent_(indent) {}

  void Null() { Begin("null"); }
  void Bool(bool value) { Begin(value ? "true" : "false"); }
  void Integer(absl::AlphaNum digits) { Begin(digits.Piece()); }
  // Writes the shortest digits that are read as the same number, with a point or an exponent, as
  // Python does: 0.1, 3.0, 1e-05. JSON has no form for NaN and the infinities.
  void Double(double value);
  // Both return false, and write nothing, if the text is not UTF-8.
  bool String(absl::string_view text);
  bool Key(absl::string_view name);

  void StartObject() { Start('{'); }
  void EndObject() { End('}'); }
  void StartArray() { Start('['); }
  void EndArray() { End(']'); }

  std::string text() && { return std::move(text_); }

 private:
  void Begin(absl::string_view token);
  void Start(char bracket);
  void End(char bracket);
  void NewLine();

  int64_t indent_;
  std::string text_;
  std::vector<bool> open_;  // for each open object or array: whether it has an element
  bool after_key_ = false;
};

// Returns " (at byte 5 of 7)", with the line in front where the text has several.
std::string JsonPlace(absl::string_view text, size_t offset);

// Returns the mistake that an exception of nlohmann's parser reports, with its place: "syntax error
// while parsing array - unexpected number literal; expected ']' (at byte 3 of 5)". `message` is its
// what(). `bytes_read` counts the bytes up to the one that the parser refused, included.
std::string JsonMistake(absl::string_view message, size_t bytes_read, absl::string_view text);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_JSON_TEXT_H_
