#include "mimo/batch/batch_rules.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "absl/strings/match.h"
#include "mimo/batch/batch_names.h"

namespace lockstep::mimo {
namespace {

// The value in `dict` at a path of keys, or nullptr.
const Value* AtPath(const Dict& dict, const std::string& path) {
  for (const Field& field : dict) {
    if (field.key == path) return &field.value;
    const auto* inner = std::get_if<Dict>(&field.value.of);
    if (inner == nullptr || !absl::StartsWith(path, field.key + ".")) continue;
    const Value* found = AtPath(*inner, path.substr(field.key.size() + 1));
    if (found != nullptr) return found;
  }
  return nullptr;
}

Table TableAtPath(const Value& batch, const std::string& path) {
  const auto* dict = std::get_if<Dict>(&batch.of);
  const Value* value = dict == nullptr ? nullptr : AtPath(*dict, path);
  const Table* table = value == nullptr ? nullptr : std::get_if<Table>(&value->of);
  return table == nullptr ? nullptr : *table;
}

// All of these names but those that options speak of: what a misspelt name may have meant.
std::set<std::string> NotMentioned(const std::set<std::string>& names,
                                   const SliceOptions& options) {
  std::set<std::string> rest = names;
  for (const auto& [name, dim] : options.batch_dims) rest.erase(name);
  for (const auto& [name, rows] : options.rows_per_sample) rest.erase(name);
  for (const auto& [name, owned] : options.ownership) {
    rest.erase(name);
    rest.erase(owned.path);
  }
  return rest;
}

}  // namespace

bool IsGrid(const std::string& key) {
  return std::any_of(std::begin(kPacked), std::end(kPacked),
                     [&](const Packed& packed) { return key == packed.grid; });
}

bool IsPacked(const Dict& dict, const std::string& key) {
  return std::any_of(std::begin(kPacked), std::end(kPacked), [&](const Packed& packed) {
    return key == packed.rows && FindTensor(dict, packed.grid) != nullptr;
  });
}

bool HasAxes(const std::string& key, const at::Tensor& tensor) {
  return absl::EndsWith(key, "position_ids") && tensor.dim() >= 3;
}

const at::Tensor* FindTensor(const Dict& dict, const std::string& key) {
  for (const Field& field : dict) {
    if (field.key == key) return std::get_if<at::Tensor>(&field.value.of);
  }
  return nullptr;
}

bool HoldsRows(const Value& value) {
  if (const auto* list = std::get_if<List>(&value.of))
    return std::any_of(list->begin(), list->end(), HoldsRows);
  if (const auto* dict = std::get_if<Dict>(&value.of)) {
    return std::any_of(dict->begin(), dict->end(),
                       [](const Field& field) { return HoldsRows(field.value); });
  }
  return !std::holds_alternative<Opaque>(value.of);
}

Declarations CollectDeclared(const Value& batch, const SliceOptions& options) {
  Declarations declared;
  if (options.batch_dims.empty() && options.ownership.empty() && options.rows_per_sample.empty())
    return declared;
  const std::set<std::string> names = NamesIn(batch);
  const auto has = [&](const char* option, const std::string& name, bool may_lack) {
    const bool found = names.count(name) > 0;
    const bool is_near = !found && may_lack && IsNear(name, NotMentioned(names, options));
    TORCH_CHECK_VALUE(found || (may_lack && !is_near), "mimo: ", option, " declares ", Name(name),
                      ", which the batch does not have",
                      Hint(name, is_near ? NotMentioned(names, options) : names));
    return found;
  };
  for (const auto& [name, dim] : options.batch_dims) has("batch_dims", name, false);
  for (const auto& [name, rows] : options.rows_per_sample) {
    const bool is_none = std::all_of(rows.begin(), rows.end(), [](int64_t n) { return n == 0; });
    has("rows_per_sample", name, is_none);
    for (size_t i = 0; i < rows.size(); ++i) {
      TORCH_CHECK_VALUE(rows[i] >= 0, "mimo: rows_per_sample of ", Name(name), " holds ", rows[i],
                        " for sample ", i, "; a sample has 0 rows or more");
    }
    declared[name].table = std::make_shared<Ownership>(ValueOf(OwnershipOfRows(rows), Name(name)));
  }
  for (const auto& [name, owned] : options.ownership) {
    TORCH_CHECK_VALUE(options.rows_per_sample.count(name) == 0,
                      "mimo: both ownership and rows_per_sample declare ", Name(name),
                      "; one of them is enough");
    const Table table = owned.table != nullptr ? owned.table : TableAtPath(batch, owned.path);
    const bool is_none = table == nullptr || NumRows(*table, owned.rows_of) == 0;
    const bool found = has("ownership", name, is_none);
    std::set<std::string> tables;
    if (table == nullptr) {
      for (const std::string& each : NotMentioned(names, options)) {
        if (TableAtPath(batch, each) != nullptr) tables.insert(each);
      }
    }
    const bool is_near = IsNear(owned.path, tables);
    TORCH_CHECK_VALUE(table != nullptr || (!found && !is_near), "mimo: ownership of ", Name(name),
                      " is to be ", Name(owned.path),
                      " of the batch, which has no ownership table there",
                      is_near ? Hint(owned.path, tables) : "");
    if (found) declared[name] = {table, owned.rows_of, /*as_counts=*/false};
  }
  return declared;
}

}  // namespace lockstep::mimo
