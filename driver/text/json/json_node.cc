#include "driver/text/json/json_node.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

// Returns the value as an error message shows it, shortened.
std::string Shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return absl::StrCat("an array of ", value.size());
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

}  // namespace

void Node::Fail(const std::string& problem) const {
  throw FormatError(absl::StrCat(path_.empty() ? "the file" : path_, ": ", problem));
}

void Node::AllowKeys(std::initializer_list<std::string_view> known) const {
  if (!value_->is_object()) Fail(absl::StrCat("expected an object, got ", Shown(*value_)));
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      std::vector<std::string> names(known.begin(), known.end());
      Fail(absl::StrCat("unknown key ", Shown(key), "; known keys are ",
                        absl::StrJoin(names, ", ")));
    }
  }
}

Node Node::At(const char* key) const {
  if (!value_->is_object()) Fail(absl::StrCat("expected an object, got ", Shown(*value_)));
  const auto found = value_->find(key);
  if (found == value_->end()) Fail(absl::StrCat("the key \"", key, "\" is missing"));
  return Node(*found, path_.empty() ? key : absl::StrCat(path_, ".", key));
}

std::optional<Node> Node::Find(const char* key) const {
  if (!value_->is_object()) Fail(absl::StrCat("expected an object, got ", Shown(*value_)));
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return At(key);
}

std::vector<Node> Node::Elements() const {
  if (!value_->is_array()) Fail(absl::StrCat("expected an array, got ", Shown(*value_)));
  std::vector<Node> elements;
  elements.reserve(value_->size());
  for (const nlohmann::json& element : *value_)
    elements.emplace_back(element, absl::StrCat(path_, "[", elements.size(), "]"));
  return elements;
}

const std::string& Node::String() const {
  if (!value_->is_string()) Fail(absl::StrCat("expected a string, got ", Shown(*value_)));
  return value_->get_ref<const std::string&>();
}

bool Node::Boolean() const {
  if (!value_->is_boolean()) Fail(absl::StrCat("expected true or false, got ", Shown(*value_)));
  return value_->get<bool>();
}

double Node::Number() const {
  if (!value_->is_number()) Fail(absl::StrCat("expected a number, got ", Shown(*value_)));
  return value_->get<double>();
}

int64_t Node::Integer(int64_t min, int64_t max) const {
  const bool fits = value_->is_number_unsigned()
                        ? max >= 0 && value_->get<uint64_t>() <= static_cast<uint64_t>(max)
                        : value_->is_number_integer() && value_->get<int64_t>() <= max;
  if (!fits || value_->get<int64_t>() < min) {
    Fail(absl::StrCat("expected a whole number from ", min, " to ", max, ", got ", Shown(*value_)));
  }
  return value_->get<int64_t>();
}

char32_t Node::Character() const {
  const std::string& text = String();
  if (text.empty() || CharAt(text.data()).size != text.size())
    Fail(absl::StrCat("expected one character, got ", Shown(*value_)));
  return CharAt(text.data()).code;
}

bool Node::Boolean(const char* key, bool otherwise) const {
  const std::optional<Node> found = Find(key);
  return found ? found->Boolean() : otherwise;
}

}  // namespace lockstep::text
