#include "mimo/batch/batch_names.h"

#include <algorithm>
#include <numeric>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

// Edits (insertions, deletions, substitutions) from one word to the other.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
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
                     [&](const std::string& each) { return Distance(name, each) <= 2; });
}

std::string Hint(const std::string& name, const std::set<std::string>& names) {
  const auto nearest = std::min_element(
      names.begin(), names.end(),
      [&](const auto& a, const auto& b) { return Distance(name, a) < Distance(name, b); });
  if (nearest == names.end()) return "; it is empty";
  if (Distance(name, *nearest) <= std::max<size_t>(name.size() / 3, 1))
    return absl::StrCat("; did you mean ", Name(*nearest), "?");
  return absl::StrCat("; it has ", absl::StrJoin(names, ", ", [](std::string* out, const auto& n) {
                        absl::StrAppend(out, Name(n));
                      }));
}

}  // namespace lockstep::mimo
