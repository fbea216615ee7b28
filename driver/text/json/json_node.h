// A value of tokenizer.json that knows its path, so that every error can name it.
//
//   Node model = root.At("model");
//   model.AllowKeys({"type", "vocab", "merges"});
//   std::string type = model.At("type").String();
//   // FormatError: model.type: expected a string, ...
//
// The failure this prevents: an option of the file that we do not know, and that is ignored. Each
// reader lists the keys that it knows; any other key is an error. Private to driver/text: Tokenizer
// turns FormatError into a Status.

#ifndef LOCKSTEP_DRIVER_TEXT_JSON_JSON_NODE_H_
#define LOCKSTEP_DRIVER_TEXT_JSON_JSON_NODE_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace lockstep::text {

struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Node {
 public:
  Node(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& json() const { return *value_; }
  bool IsNull() const { return value_->is_null(); }
  bool IsArray() const { return value_->is_array(); }

  // Throws FormatError with this value's path in front.
  [[noreturn]] void Fail(const std::string& problem) const;

  // Throws where the value is not an object, or has a key that is not in `known`.
  void AllowKeys(std::initializer_list<std::string_view> known) const;

  Node At(const char* key) const;                   // throws where it is absent
  std::optional<Node> Find(const char* key) const;  // nothing where it is absent or null
  std::vector<Node> Elements() const;               // throws where the value is not an array

  // Each throws where the value is of another type.
  const std::string& String() const;  // valid UTF-8: the parser checks
  bool Boolean() const;
  double Number() const;
  int64_t Integer(int64_t min, int64_t max) const;
  char32_t Character() const;  // a string of one character

  bool Boolean(const char* key, bool otherwise) const;  // `otherwise` where absent or null

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_JSON_JSON_NODE_H_
