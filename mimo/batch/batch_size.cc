#include "mimo/batch/batch_size.h"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "mimo/batch/batch_names.h"
#include "mimo/batch/sequences.h"

namespace lockstep::mimo {
namespace {

std::vector<const Field*> ByKey(const Dict& dict) {
  std::vector<const Field*> fields;
  for (const Field& field : dict) fields.push_back(&field);
  std::sort(fields.begin(), fields.end(),
            [](const Field* a, const Field* b) { return a->key < b->key; });
  return fields;
}

class Finder {
 public:
  // The first size that is not `except`.
  Finder(const SliceOptions& options, const Declarations& declared, std::optional<int64_t> except)
      : options_(options), declared_(declared), except_(except) {}

  BatchSize Find(const std::string& path, const std::string& key, const Value& value) const {
    if (const auto* dict = std::get_if<Dict>(&value.of)) {
      if (const auto sequences = SequencesOf(*dict, path, options_, declared_)) {
        BatchSize found = Size(sequences->num_samples(),
                               absl::StrCat("the sequences in ", Name(sequences->path)));
        if (!found.named.empty()) return found;
      }
      for (const Field* field : ByKey(*dict)) {
        if (IsPacked(*dict, field->key)) continue;
        BatchSize found = Find(Join(path, field->key), field->key, field->value);
        if (!found.named.empty()) return found;
      }
      return {};
    }
    if (const Declared* rows = mimo::Find(declared_, path, key)) {
      return Size(
          rows->table->num_samples(),
          absl::StrCat(rows->as_counts ? "rows_per_sample" : "ownership", " of ", Name(path)));
    }
    if (const auto* table = std::get_if<Table>(&value.of))
      return Size((*table)->num_samples(), absl::StrCat("the table ", Name(path)));
    const auto* dim = mimo::Find(options_.batch_dims, path, key);
    if (dim != nullptr && !dim->has_value()) return {};
    if (const auto* list = std::get_if<List>(&value.of)) {
      if (dim == nullptr) return {};
      return Size(static_cast<int64_t>(list->size()), absl::StrCat("the list ", Name(path)));
    }
    const auto* tensor = std::get_if<at::Tensor>(&value.of);
    if (tensor == nullptr) return {};
    return OfTensor(path, key, *tensor, dim == nullptr ? nullptr : &**dim);
  }

  BatchSize OfTensor(const std::string& path, const std::string& key, const at::Tensor& tensor,
                     const int64_t* declared_dim) const {
    if (tensor.dim() == 0 || IsGrid(key)) return {};
    // The number of axes of positions says nothing about the batch size, unless there are three.
    const bool has_axes = declared_dim == nullptr && HasAxes(key, tensor);
    if (has_axes && tensor.size(0) != 3) return {};
    const int64_t dim = declared_dim != nullptr ? *declared_dim : has_axes ? 1 : 0;
    if (dim < -tensor.dim() || dim >= tensor.dim()) return {};  // cutting says what is wrong
    const int64_t samples = tensor.size(dim);
    if (except_ == samples) return {};
    return {samples, absl::StrCat("of ", Name(path, tensor)), declared_dim == nullptr};
  }

 private:
  BatchSize Size(int64_t samples, const std::string& name) const {
    if (except_ == samples) return {};
    return {samples, absl::StrCat("of ", name), /*is_guess=*/false};
  }

  const SliceOptions& options_;
  const Declarations& declared_;
  const std::optional<int64_t> except_;
};

struct NamedList {
  std::string path;
  const List* list;
};

void CollectLists(const std::string& path, const std::string& key, const Value& value,
                  const SliceOptions& options, std::vector<NamedList>* lists) {
  if (const auto* dict = std::get_if<Dict>(&value.of)) {
    for (const Field* field : ByKey(*dict))
      CollectLists(Join(path, field->key), field->key, field->value, options, lists);
    return;
  }
  const auto* list = std::get_if<List>(&value.of);
  if (list != nullptr && Find(options.batch_dims, path, key) == nullptr)
    lists->push_back({path, list});
}

}  // namespace

BatchSize FindBatchSize(const Value& batch, const SliceOptions& options,
                        const Declarations& declared) {
  const Finder finder(options, declared, {});
  if (const auto* dict = std::get_if<Dict>(&batch.of)) {
    if (SequencesOf(*dict, "", options, declared).has_value()) return finder.Find("", "", batch);
    const std::string key = "input_ids";
    const auto* dim = Find(options.batch_dims, key, key);
    const at::Tensor* ids = FindTensor(*dict, key);
    if (ids != nullptr && (dim == nullptr || dim->has_value())) {
      BatchSize size = finder.OfTensor(key, key, *ids, dim == nullptr ? nullptr : &**dim);
      size.is_guess = false;
      if (!size.named.empty()) return size;
    }
  }
  return finder.Find("", "", batch);
}

BatchSize FindListSize(const Value& batch, const SliceOptions& options) {
  std::vector<NamedList> lists;
  CollectLists("", "", batch, options, &lists);
  if (lists.empty()) return {};
  const size_t size = lists[0].list->size();
  const bool agree = std::all_of(lists.begin(), lists.end(), [&](const NamedList& each) {
    return each.list->size() == size && !HoldsRows(*each.list);
  });
  TORCH_CHECK_VALUE(
      agree, "mimo: the batch size is unknown: no tensor has one row for each sample, and the ",
      "lists differ, or hold tensors (",
      absl::StrJoin(lists, ", ",
                    [](std::string* out, const NamedList& each) {
                      absl::StrAppend(out, Name(each.path), " of ", each.list->size());
                    }),
      "); give batch_size");
  return {static_cast<int64_t>(size), absl::StrCat("of the list ", Name(lists[0].path)), true};
}

std::string OtherBatchSize(const Value& batch, const SliceOptions& options,
                           const Declarations& declared, int64_t samples) {
  const BatchSize other = Finder(options, declared, samples).Find("", "", batch);
  if (other.named.empty()) return "";
  return absl::StrCat(other.named.substr(std::string("of ").size()), " has ", other.samples);
}

}  // namespace lockstep::mimo
