#include "mimo/batch/batch_names.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"

namespace lockstep::mimo {
namespace {

void CollectNames(const std::string& path, const Value& value, std::set<std::string>* names) {
  if (const auto* list = std::get_if<List>(&value.of)) {
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string index = absl::StrCat(path, "[", i, "]");
      names->insert(index);
      CollectNames(index, (*list)[i], names);
    }
  } else if (const auto* dict = std::get_if<Dict>(&value.of)) {
    for (const Field& field : *dict) {
      names->insert({field.key, Join(path, field.key)});
      CollectNames(Join(path, field.key), field.value, names);
    }
  }
}

}  // namespace

std::string Name(const std::string& path) { return absl::StrCat("\"", path, "\""); }
std::string Name(const std::string& path, const at::Tensor& tensor) {
  return absl::StrCat(Name(path), " [", absl::StrJoin(tensor.sizes(), ", "), "]");
}

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

std::set<std::string> NamesIn(const Value& batch) {
  std::set<std::string> names;
  CollectNames("", batch, &names);
  return names;
}

bool IsNear(const std::string& name, const std::set<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& each) { return base::EditDistance(name, each) <= 2; });
}

std::string Hint(const std::string& name, const std::set<std::string>& names) {
  if (names.empty()) return "; it is empty";
  const std::string nearest = base::Nearest(name, {names.begin(), names.end()});
  if (!nearest.empty()) return absl::StrCat("; did you mean ", Name(nearest), "?");
  return absl::StrCat("; it has ", absl::StrJoin(names, ", ", [](std::string* out, const auto& n) {
                        absl::StrAppend(out, Name(n));
                      }));
}

}  // namespace lockstep::mimo
