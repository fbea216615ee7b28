#include "mimo/slice.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "ATen/ops/narrow.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "mimo/ownership.h"

// Two walks. The first looks for the batch size where nobody gave it; the second cuts. What a key's
// rows belong to is one question, asked in one place (RowsOf): declared rows, then the rows that a
// grid beside it implies, then one row for each sample.

namespace lockstep::mimo {
namespace {

// A tensor beside a grid [images, 3] that has t * h * w rows for each image.
struct Packed {
  const char* grid;
  const char* rows;
};
constexpr Packed kPacked[] = {{"grid_thw", "pixel_values"},
                              {"grid_thw", "hidden_states"},
                              {"image_grid_thw", "pixel_values"},
                              {"video_grid_thw", "pixel_values_videos"}};

bool IsGrid(const std::string& key) {
  return std::any_of(std::begin(kPacked), std::end(kPacked),
                     [&](const Packed& packed) { return key == packed.grid; });
}

// `"clip.pixel_values" [10, 3]`
std::string Name(const std::string& path) { return absl::StrCat("\"", path, "\""); }
std::string Name(const std::string& path, const at::Tensor& tensor) {
  return absl::StrCat(Name(path), " [", absl::StrJoin(tensor.sizes(), ", "), "]");
}

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

// What a map says of a key: by its path, or else by its name.
template <typename T>
const T* Find(const std::map<std::string, T>& map, const std::string& path,
              const std::string& key) {
  if (map.empty()) return nullptr;
  auto it = map.find(path);
  if (it == map.end()) it = map.find(key);
  return it == map.end() ? nullptr : &it->second;
}

const at::Tensor* FindTensor(const Dict& dict, const std::string& key) {
  for (const Field& field : dict) {
    if (field.key == key) return std::get_if<at::Tensor>(&field.value.of);
  }
  return nullptr;
}

bool HoldsTensors(const Value& value) {
  if (std::holds_alternative<at::Tensor>(value.of)) return true;
  if (const auto* list = std::get_if<List>(&value.of))
    return std::any_of(list->begin(), list->end(), HoldsTensors);
  if (const auto* dict = std::get_if<Dict>(&value.of)) {
    return std::any_of(dict->begin(), dict->end(),
                       [](const Field& field) { return HoldsTensors(field.value); });
  }
  return false;
}

// Positions of several axes: [axes, batch, ...], as a rule.
bool HasAxes(const std::string& key, const at::Tensor& tensor) {
  return absl::EndsWith(key, "position_ids") && tensor.dim() >= 3;
}

// Keys and paths of all that a batch holds.
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

// `; did you mean "pixel_values"?`, or what the batch has where no name is near.
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

class Slicer {
 public:
  Slicer(const Value& batch, const SliceOptions& options) : options_(options) {
    CheckDeclared(batch);
    if (options.batch_size.has_value()) {
      batch_size_ = *options.batch_size;
      TORCH_CHECK_VALUE(batch_size_ >= 0, "mimo: batch_size must not be negative, but is ",
                        batch_size_);
      named_ = "of the option batch_size";
    } else if (const auto* dict = std::get_if<Dict>(&batch.of)) {
      if (const at::Tensor* ids = FindTensor(*dict, "input_ids")) FindSize("input_ids", *ids);
    }
    if (named_.empty()) FindSize("", "", batch);
    if (named_.empty()) return;  // no tensor is cut by sample: there is nothing to check
    CheckDivides();
    samples_ = Part({0, batch_size_}, options.dp_rank, options.dp_size);
  }

  Value Cut(const std::string& path, const std::string& key, const Value& value,
            const std::vector<int64_t>* packed_rows = nullptr) const {
    const auto* declared_dim = Find(options_.batch_dims, path, key);
    if (declared_dim != nullptr && !declared_dim->has_value()) return value;
    const std::vector<int64_t>* rows = Find(options_.rows_per_sample, path, key);
    if (rows == nullptr && declared_dim == nullptr) rows = packed_rows;
    if (const auto* tensor = std::get_if<at::Tensor>(&value.of))
      return CutTensor(path, key, *tensor, declared_dim == nullptr ? nullptr : &**declared_dim,
                       rows);
    if (const auto* list = std::get_if<List>(&value.of))
      return CutList(path, *list, declared_dim != nullptr, rows);
    TORCH_CHECK_VALUE(rows == nullptr && declared_dim == nullptr, "mimo: ", Name(path),
                      " is neither a tensor nor a list, and so has no batch dim or rows; declare "
                      "those of what is in it, or nothing");
    if (const auto* dict = std::get_if<Dict>(&value.of)) return CutDict(path, *dict);
    return value;
  }

 private:
  // A declaration that nothing follows is one of another key.
  void CheckDeclared(const Value& batch) const {
    if (options_.batch_dims.empty() && options_.rows_per_sample.empty()) return;
    std::set<std::string> names;
    CollectNames("", batch, &names);
    for (const auto& [name, dim] : options_.batch_dims) {
      TORCH_CHECK_VALUE(names.count(name) > 0, "mimo: batch_dims declares ", Name(name),
                        ", which the batch does not have", Hint(name, names));
    }
    for (const auto& [name, rows] : options_.rows_per_sample) {
      const bool is_none = std::all_of(rows.begin(), rows.end(), [](int64_t n) { return n == 0; });
      TORCH_CHECK_VALUE(is_none || names.count(name) > 0, "mimo: rows_per_sample declares ",
                        Name(name), ", which the batch does not have", Hint(name, names));
    }
  }

  // --- The batch size

  void FindSize(const std::string& path, const at::Tensor& tensor) {
    const auto* declared = Find(options_.batch_dims, path, path);
    if (tensor.dim() == 0 || (declared != nullptr && !declared->has_value())) return;
    const int64_t dim = declared == nullptr ? 0 : **declared;
    if (dim < -tensor.dim() || dim >= tensor.dim()) return;  // CutTensor says what is wrong
    batch_size_ = tensor.size(dim);
    named_ = absl::StrCat("of ", Name(path, tensor));
  }

  // The first tensor, by path, of one row for each sample.
  void FindSize(const std::string& path, const std::string& key, const Value& value) {
    if (const auto* dict = std::get_if<Dict>(&value.of)) {
      std::vector<const Field*> fields;
      for (const Field& field : *dict) fields.push_back(&field);
      std::sort(fields.begin(), fields.end(),
                [](const Field* a, const Field* b) { return a->key < b->key; });
      for (const Field* field : fields) {
        if (named_.empty() && !IsPacked(*dict, field->key))
          FindSize(Join(path, field->key), field->key, field->value);
      }
      return;
    }
    const auto* tensor = std::get_if<at::Tensor>(&value.of);
    const auto* rows = Find(options_.rows_per_sample, path, key);
    if (rows != nullptr) {
      batch_size_ = static_cast<int64_t>(rows->size());
      named_ = absl::StrCat("of rows_per_sample of ", Name(path));
      return;
    }
    if (tensor == nullptr || tensor->dim() == 0 || IsGrid(key)) return;
    const auto* declared = Find(options_.batch_dims, path, key);
    if (declared != nullptr && !declared->has_value()) return;
    // How many axes positions have tells nothing, but where there are three.
    const bool has_axes = declared == nullptr && HasAxes(key, *tensor);
    if (has_axes && tensor->size(0) != 3) return;
    const int64_t dim = declared != nullptr ? **declared : has_axes ? 1 : 0;
    if (dim < -tensor->dim() || dim >= tensor->dim()) return;
    batch_size_ = tensor->size(dim);
    named_ = absl::StrCat("of ", Name(path, *tensor));
  }

  static bool IsPacked(const Dict& dict, const std::string& key) {
    return std::any_of(std::begin(kPacked), std::end(kPacked), [&](const Packed& packed) {
      return key == packed.rows && FindTensor(dict, packed.grid) != nullptr;
    });
  }

  void CheckDivides() const {
    const int64_t n = options_.dp_size;
    if (options_.uneven || batch_size_ % n == 0) return;
    const int64_t below = batch_size_ / n * n;
    TORCH_CHECK_VALUE(false, "mimo: batch size ", batch_size_, " ", named_,
                      " is not divisible by dp_size ", n, "; use ",
                      below > 0 ? absl::StrCat(below, " or ", below + n) : absl::StrCat(n),
                      ", or allow uneven parts");
  }

  // --- Cutting

  // Of a tensor or list whose samples have these rows, of which there are `count`.
  Range RowsOf(const std::string& name, const std::vector<int64_t>& rows, int64_t count) const {
    TORCH_CHECK_VALUE(static_cast<int64_t>(rows.size()) == batch_size_, "mimo: rows_per_sample of ",
                      name, " holds ", rows.size(), " numbers, but the batch has ", batch_size_,
                      " samples (", named_, ")");
    Range range;
    int64_t sum = 0;
    for (int64_t i = 0; i < batch_size_; ++i) {
      const int64_t of_sample = rows[static_cast<size_t>(i)];
      TORCH_CHECK_VALUE(of_sample >= 0, "mimo: rows_per_sample of ", name, " holds ", of_sample,
                        " for sample ", i, "; a sample has 0 rows or more");
      if (i == samples_.begin) range.begin = sum;
      sum += of_sample;
      if (i + 1 == samples_.end) range.end = sum;
    }
    if (samples_.size() == 0) range.begin = range.end = 0;
    TORCH_CHECK_VALUE(sum == count, "mimo: rows_per_sample of ", name, " adds up to ", sum,
                      ", but there are ", count, " rows");
    return range;
  }

  // Of a tensor that nothing is declared of.
  int64_t UsualBatchDim(const std::string& path, const std::string& key,
                        const at::Tensor& tensor) const {
    if (!HasAxes(key, tensor)) return 0;
    if (tensor.size(0) == 3) return 1;
    TORCH_CHECK_VALUE(!named_.empty(), "mimo: ", Name(path, tensor), " does not tell which dim is ",
                      "the batch's, nor does another tensor tell its size; say it: batch_dims of ",
                      Name(key));
    TORCH_CHECK_VALUE(tensor.size(0) != batch_size_ || tensor.size(1) != batch_size_,
                      "mimo: ", Name(path, tensor), " has the ", batch_size_,
                      " samples of the batch (", named_,
                      ") on dim 0 or on dim 1; say on which: batch_dims of ", Name(key));
    return tensor.size(1) == batch_size_ ? 1 : 0;
  }

  at::Tensor CutTensor(const std::string& path, const std::string& key, const at::Tensor& tensor,
                       const int64_t* declared_dim, const std::vector<int64_t>* rows) const {
    if (tensor.dim() == 0) {
      TORCH_CHECK_VALUE(declared_dim == nullptr && rows == nullptr, "mimo: ", Name(path, tensor),
                        " has no dimension, and so no rows; declare nothing of it");
      return tensor;
    }
    if (options_.dp_size == 1 && declared_dim == nullptr && rows == nullptr) return tensor;
    const int64_t dim = declared_dim != nullptr ? *declared_dim
                        : rows != nullptr       ? 0
                                                : UsualBatchDim(path, key, tensor);
    TORCH_CHECK_VALUE(dim >= -tensor.dim() && dim < tensor.dim(), "mimo: ", Name(path, tensor),
                      " has no dim ", dim, ", which batch_dims says is its batch dim");
    const int64_t count = tensor.size(dim);
    if (rows != nullptr) {
      const Range range = RowsOf(Name(path, tensor), *rows, count);
      return at::narrow(tensor, dim, range.begin, range.size());
    }
    if (declared_dim == nullptr && IsGrid(key)) RefuseGrid(path, key, tensor);
    TORCH_CHECK_VALUE(!absl::StartsWith(key, "cu_seqlens"), "mimo: ", Name(path, tensor),
                      " holds offsets into a packed sequence, which a cut would leave pointing "
                      "elsewhere; slice before packing, or hand it on whole (batch_dims)");
    TORCH_CHECK_VALUE(count == batch_size_, "mimo: ", Name(path, tensor), " has ", count,
                      " rows on dim ", dim, ", but the batch has ", batch_size_, " samples (",
                      named_,
                      "); say how many rows each sample has (rows_per_sample), which dim "
                      "is the batch's, or that it is handed on whole (batch_dims)");
    return at::narrow(tensor, dim, samples_.begin, samples_.size());
  }

  [[noreturn]] static void RefuseGrid(const std::string& path, const std::string& key,
                                      const at::Tensor& grid) {
    TORCH_CHECK_VALUE(false, "mimo: ", Name(path, grid),
                      " has one row for each image, which no count of images tells whose they are; "
                      "say how many images each sample has: rows_per_sample of ",
                      Name(key));
  }

  List CutList(const std::string& path, const List& list, bool declared,
               const std::vector<int64_t>* rows) const {
    const int64_t count = static_cast<int64_t>(list.size());
    Range range = samples_;
    if (rows != nullptr) {
      range = RowsOf(Name(path), *rows, count);
    } else if (declared || (count == batch_size_ && !named_.empty())) {
      TORCH_CHECK_VALUE(count == batch_size_, "mimo: ", Name(path), " is a list of ", count,
                        " values, but the batch has ", batch_size_, " samples (", named_, ")");
    } else {
      if (!HoldsTensors(list)) return list;
      List values;
      for (size_t i = 0; i < list.size(); ++i) {
        const std::string index = absl::StrCat(path, "[", i, "]");
        values.push_back(Cut(index, index, list[i]));
      }
      return values;
    }
    return List(list.begin() + range.begin, list.begin() + range.end);
  }

  Dict CutDict(const std::string& path, const Dict& dict) const {
    std::map<std::string, std::vector<int64_t>> packed;  // rows per sample, by key
    for (const Packed& pair : kPacked) {
      const at::Tensor* grid = FindTensor(dict, pair.grid);
      if (grid == nullptr || FindTensor(dict, pair.rows) == nullptr) continue;
      const std::string grid_path = Join(path, pair.grid), rows_path = Join(path, pair.rows);
      if (Find(options_.rows_per_sample, rows_path, pair.rows) != nullptr ||
          Find(options_.batch_dims, rows_path, pair.rows) != nullptr)
        continue;
      const auto* images = Find(options_.rows_per_sample, grid_path, pair.grid);
      if (images == nullptr && options_.dp_size == 1) continue;
      if (images == nullptr) RefuseGrid(grid_path, pair.grid, *grid);
      packed[pair.rows] = PatchesPerSample(grid_path, *grid, *images);
    }
    Dict fields;
    fields.reserve(dict.size());
    for (const Field& field : dict) {
      const auto it = packed.find(field.key);
      fields.push_back({field.key, Cut(Join(path, field.key), field.key, field.value,
                                       it == packed.end() ? nullptr : &it->second)});
    }
    return fields;
  }

  // The sum of t * h * w over the images of each sample. Reads the grid's values: on the CPU.
  std::vector<int64_t> PatchesPerSample(const std::string& path, const at::Tensor& grid,
                                        const std::vector<int64_t>& images) const {
    TORCH_CHECK_VALUE(grid.dim() == 2 && grid.size(1) == 3, "mimo: ", Name(path, grid),
                      " must be [images, 3], the t, h and w of each image");
    RowsOf(Name(path, grid), images, grid.size(0));
    const at::Tensor values = grid.to(at::kCPU, at::kLong).contiguous();
    const int64_t* thw = values.const_data_ptr<int64_t>();
    std::vector<int64_t> patches;
    for (const int64_t count : images) {
      int64_t sum = 0;
      for (int64_t i = 0; i < count; ++i, thw += 3) sum += thw[0] * thw[1] * thw[2];
      patches.push_back(sum);
    }
    return patches;
  }

  const SliceOptions& options_;
  int64_t batch_size_ = 0;
  std::string named_;  // whose batch size that is; empty: no tensor is cut by sample
  Range samples_;      // of this rank
};

}  // namespace

Value Slice(const Value& batch, const SliceOptions& options) {
  TORCH_CHECK_VALUE(options.dp_size >= 1, "mimo: dp_size must be 1 or more, but is ",
                    options.dp_size);
  TORCH_CHECK_VALUE(options.dp_rank >= 0 && options.dp_rank < options.dp_size, "mimo: dp_rank ",
                    options.dp_rank, " is not one of 0 to dp_size - 1 = ", options.dp_size - 1);
  Value part = Slicer(batch, options).Cut("", "", batch);
  return options.dp_size == 1 ? batch : part;
}

}  // namespace lockstep::mimo
