#include "mimo/batch/slice.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ATen/ops/index_select.h"
#include "ATen/ops/narrow.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "mimo/batch/batch_names.h"
#include "mimo/batch/batch_rules.h"
#include "mimo/batch/batch_size.h"
#include "mimo/batch/ownership.h"
#include "mimo/batch/reorder.h"
#include "mimo/batch/sequences.h"

// There are two walks. The first finds the batch size if the caller did not give it. The second
// takes from each key the rows of this rank's samples, or of all samples in another order. The
// owners of a key's rows are always a table: a declared table, one made from the rows of each
// sample, or one made from the grid next to it. Without a table each sample has one row. Test:
// slice_property_test.cc.

namespace lockstep::mimo {
namespace {

class Slicer {
 public:
  // `order`: of the samples, nullptr for the part of a replica.
  Slicer(const Value& batch, const SliceOptions& options, const std::vector<int64_t>* order)
      : batch_(batch),
        options_(options),
        order_(order),
        declared_(CollectDeclared(batch, options)) {
    if (options.batch_size.has_value()) {
      batch_size_ = *options.batch_size;
      TORCH_CHECK_VALUE(batch_size_ >= 0, "mimo: batch_size must not be negative, but is ",
                        batch_size_);
      named_ = order == nullptr ? "of the option batch_size" : "in the order";
    } else {
      BatchSize size = FindBatchSize(batch, options, declared_);
      if (size.named.empty() && !is_whole()) size = FindListSize(batch, options);
      batch_size_ = size.samples;
      named_ = size.named;
      is_guess_ = size.is_guess;
    }
    if (named_.empty()) return;  // nothing is cut by sample: there is nothing to check
    if (order_ == nullptr) CheckDivides();
    samples_ = Part({0, batch_size_}, options.dp_rank, options.dp_size);
  }

  // `packed_rows`: by the grid next to the value. `sequences`: of the dict that holds it.
  Value Cut(const std::string& path, const std::string& key, const Value& value,
            const Declared* packed_rows = nullptr, const Sequences* sequences = nullptr) const {
    Value part = CutUntagged(path, key, value, packed_rows, sequences);
    part.tag = value.tag;
    return part;
  }

 private:
  bool is_whole() const { return order_ == nullptr && options_.dp_size == 1; }

  Value CutUntagged(const std::string& path, const std::string& key, const Value& value,
                    const Declared* packed_rows, const Sequences* sequences) const {
    const auto* declared_dim = Find(options_.batch_dims, path, key);
    if (declared_dim != nullptr && !declared_dim->has_value()) return value;
    const Declared* rows = Find(declared_, path, key);
    if (rows == nullptr && declared_dim == nullptr) rows = packed_rows;
    if (const auto* tensor = std::get_if<at::Tensor>(&value.of))
      return CutTensor(path, key, *tensor, declared_dim == nullptr ? nullptr : &**declared_dim,
                       rows, sequences);
    if (const auto* list = std::get_if<List>(&value.of))
      return CutList(path, *list, declared_dim != nullptr, rows, sequences);
    TORCH_CHECK_VALUE(rows == nullptr && declared_dim == nullptr, "mimo: ", Name(path),
                      " is neither a tensor nor a list, and so has no batch dim or rows; declare "
                      "those of what is in it, or nothing");
    if (const auto* table = std::get_if<Table>(&value.of)) return CutTable(path, **table);
    if (const auto* dict = std::get_if<Dict>(&value.of)) return CutDict(path, *dict, sequences);
    return value;
  }

  // --- The batch size

  void CheckDivides() const {
    const int64_t n = options_.dp_size;
    if (options_.uneven || batch_size_ % n == 0) return;
    const std::string other =
        is_guess_ ? OtherBatchSize(batch_, options_, declared_, batch_size_) : "";
    TORCH_CHECK_VALUE(other.empty(), "mimo: batch size ", batch_size_, " ", named_,
                      " is not divisible by dp_size ", n, ", and ", other,
                      "; give batch_size, and ownership (or rows_per_sample) for the one that does "
                      "not have one row for each sample");
    const int64_t below = batch_size_ / n * n;
    TORCH_CHECK_VALUE(false, "mimo: batch size ", batch_size_, " ", named_,
                      " is not divisible by dp_size ", n, "; use ",
                      below > 0 ? absl::StrCat(below, " or ", below + n) : absl::StrCat(n),
                      ", or allow uneven parts");
  }

  // --- Cutting

  static const char* OptionOf(const Declared& rows) {
    return rows.as_counts ? "rows_per_sample" : "ownership";
  }

  void CheckSizeIsKnown(const std::string& name) const {
    TORCH_CHECK_VALUE(!named_.empty(), "mimo: ", name,
                      " is to be cut by sample, but the batch size is unknown; give batch_size");
  }

  // Checks that the table is of the batch's samples, and of the `count` rows of a tensor or list.
  void CheckTable(const std::string& name, const Declared& rows, int64_t count) const {
    CheckSizeIsKnown(name);
    const int64_t num_samples = rows.table->num_samples();
    TORCH_CHECK_VALUE(num_samples == batch_size_, "mimo: ", OptionOf(rows), " of ", name,
                      rows.as_counts ? " holds " : " is of ", num_samples,
                      rows.as_counts ? " numbers" : " samples", ", but the batch has ", batch_size_,
                      " samples (", named_, ")");
    const int64_t num_rows = NumRows(*rows.table, rows.rows_of);
    TORCH_CHECK_VALUE(num_rows == count || !rows.as_counts, "mimo: rows_per_sample of ", name,
                      " adds up to ", num_rows, ", but there are ", count, " rows");
    TORCH_CHECK_VALUE(num_rows == count, "mimo: ownership of ", name, " has ", num_rows, " ",
                      NameOf(rows.rows_of), ", but there are ", count, " rows");
  }

  // Returns the samples of this part, in their order.
  std::vector<int64_t> Order() const {
    if (order_ != nullptr) return *order_;
    std::vector<int64_t> samples(static_cast<size_t>(samples_.size()));
    std::iota(samples.begin(), samples.end(), samples_.begin);
    return samples;
  }

  // Takes this part of a dim with these rows; nullptr: one row for each sample.
  at::Tensor Take(const at::Tensor& tensor, int64_t dim, const Declared* rows) const {
    if (order_ == nullptr) {
      const Range range =
          rows == nullptr ? samples_ : RowsOfSamples(*rows->table, rows->rows_of, samples_);
      return at::narrow(tensor, dim, range.begin, range.size());
    }
    const std::vector<int64_t> order =
        rows == nullptr ? *order_ : RowOrder(*rows->table, rows->rows_of, *order_);
    return at::index_select(tensor, dim, at::tensor(order, at::kLong).to(tensor.device()));
  }

  List Take(const List& list, const Declared* rows) const {
    if (order_ == nullptr) {
      const Range range =
          rows == nullptr ? samples_ : RowsOfSamples(*rows->table, rows->rows_of, samples_);
      return List(list.begin() + range.begin, list.begin() + range.end);
    }
    List values;
    for (const int64_t i :
         rows == nullptr ? *order_ : RowOrder(*rows->table, rows->rows_of, *order_))
      values.push_back(list[static_cast<size_t>(i)]);
    return values;
  }

  Table CutTable(const std::string& path, const Ownership& table) const {
    TORCH_CHECK_VALUE(is_whole() || table.num_samples() == batch_size_, "mimo: the table ",
                      Name(path), " is of ", table.num_samples(), " samples, but the batch has ",
                      batch_size_, " (", named_, ")");
    if (order_ != nullptr) return std::make_shared<Ownership>(Reordered(table, *order_));
    return std::make_shared<Ownership>(is_whole() ? table : SliceOwnership(table, samples_));
  }

  // Returns the batch dim of a tensor without a declaration.
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
                      ") on dim 0 or on dim 1; declare which: batch_dims of ", Name(key));
    return tensor.size(1) == batch_size_ ? 1 : 0;
  }

  at::Tensor CutTensor(const std::string& path, const std::string& key, const at::Tensor& tensor,
                       const int64_t* declared_dim, const Declared* rows,
                       const Sequences* sequences) const {
    if (tensor.dim() == 0) {
      TORCH_CHECK_VALUE(declared_dim == nullptr && rows == nullptr, "mimo: ", Name(path, tensor),
                        " has no dimension, and so no rows; declare nothing of it");
      return tensor;
    }
    if (is_whole() && declared_dim == nullptr && rows == nullptr) return tensor;
    const bool has_offsets = rows == nullptr && absl::StartsWith(key, "cu_seqlens");
    const bool may_have_tokens = sequences != nullptr && rows == nullptr &&
                                 declared_dim == nullptr && path != sequences->path;
    if (has_offsets && may_have_tokens) return RunningSums(*sequences, path, tensor, Order());
    if (may_have_tokens && !IsGrid(key)) {
      const std::optional<int64_t> token_dim = TokenDim(*sequences, path, key, tensor);
      if (token_dim.has_value()) return Take(tensor, *token_dim, &sequences->tokens);
    }
    const int64_t dim = declared_dim != nullptr ? *declared_dim
                        : rows != nullptr       ? 0
                                                : UsualBatchDim(path, key, tensor);
    TORCH_CHECK_VALUE(dim >= -tensor.dim() && dim < tensor.dim(), "mimo: ", Name(path, tensor),
                      " has no dim ", dim, ", which batch_dims says is its batch dim");
    const int64_t count = tensor.size(dim);
    if (rows != nullptr) {
      CheckTable(Name(path, tensor), *rows, count);
      return Take(tensor, dim, rows);
    }
    if (declared_dim == nullptr && IsGrid(key)) RefuseGrid(path, key, tensor);
    TORCH_CHECK_VALUE(!has_offsets, "mimo: ", Name(path, tensor),
                      " holds offsets into a packed sequence, which a cut would leave pointing "
                      "elsewhere; give the lengths as seq_lens, slice before packing, or pass it "
                      "on whole (batch_dims)");
    CheckSizeIsKnown(Name(path, tensor));
    TORCH_CHECK_VALUE(count == batch_size_, "mimo: ", Name(path, tensor), " has ", count,
                      " rows on dim ", dim, ", but the batch has ", batch_size_, " samples (",
                      named_, ")", sequences == nullptr ? "" : TokensInWords(*sequences),
                      "; say how many rows each sample has (rows_per_sample), which dim "
                      "is the batch's, or that it is passed on whole (batch_dims)",
                      is_guess_ ? "; or, if that is not the batch's size, give batch_size, and "
                                  "ownership for what has other rows"
                                : "");
    return Take(tensor, dim, nullptr);
  }

  [[noreturn]] static void RefuseGrid(const std::string& path, const std::string& key,
                                      const at::Tensor& grid) {
    TORCH_CHECK_VALUE(false, "mimo: ", Name(path, grid),
                      " has one row for each image, but the number of images of each sample is "
                      "unknown; give rows_per_sample of ",
                      Name(key));
  }

  static std::string TokensInWords(const Sequences& sequences) {
    return absl::StrCat(" of ", sequences.num_tokens(), " tokens");
  }

  List CutList(const std::string& path, const List& list, bool declared, const Declared* rows,
               const Sequences* sequences) const {
    const int64_t count = static_cast<int64_t>(list.size());
    if (rows != nullptr) {
      CheckTable(Name(path), *rows, count);
      return Take(list, rows);
    }
    if (sequences != nullptr && !declared && !is_whole() && path != sequences->path &&
        !HoldsRows(list) && HasTokens(*sequences, path, count))
      return Take(list, &sequences->tokens);
    if (declared || (count == batch_size_ && !named_.empty() && !DeclaresElements(path, count))) {
      CheckSizeIsKnown(Name(path));
      TORCH_CHECK_VALUE(count == batch_size_, "mimo: ", Name(path), " is a list of ", count,
                        " values, but the batch has ", batch_size_, " samples (", named_, ")");
      TORCH_CHECK_VALUE(declared || is_whole() || count == 1 || !HaveAllRowsOfBatch(list),
                        "mimo: ", Name(path), " is a list of ", count, " values, and each has the ",
                        "rows of all ", batch_size_, " samples of the batch (", named_,
                        "), too; say whether it has one value for each sample (batch_dims of ",
                        Name(path), " is 0) or each value is cut (batch_dims of ",
                        Name(absl::StrCat(path, "[0]")), " is 0, and so on)");
      return Take(list, nullptr);
    }
    if (!HoldsRows(list)) return list;
    List values;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string index = absl::StrCat(path, "[", i, "]");
      values.push_back(Cut(index, index, list[i], nullptr, sequences));
    }
    return values;
  }

  bool DeclaresElements(const std::string& path, int64_t count) const {
    if (options_.batch_dims.empty() && declared_.empty()) return false;
    for (int64_t i = 0; i < count; ++i) {
      const std::string index = absl::StrCat(path, "[", i, "]");
      if (options_.batch_dims.count(index) + declared_.count(index) > 0) return true;
    }
    return false;
  }

  // Whether all tensors and tables in it have, and each value of a list has any.
  bool HaveAllRowsOfBatch(const Value& value) const {
    if (const auto* tensor = std::get_if<at::Tensor>(&value.of))
      return tensor->dim() > 0 && tensor->size(0) == batch_size_;
    if (const auto* table = std::get_if<Table>(&value.of))
      return (*table)->num_samples() == batch_size_;
    if (const auto* list = std::get_if<List>(&value.of)) {
      return std::all_of(list->begin(), list->end(),
                         [&](const Value& each) { return HaveAllRowsOfBatch(each); });
    }
    const auto* dict = std::get_if<Dict>(&value.of);
    return dict != nullptr && HoldsRows(value) &&
           std::all_of(dict->begin(), dict->end(), [&](const Field& field) {
             return !HoldsRows(field.value) || HaveAllRowsOfBatch(field.value);
           });
  }

  Dict CutDict(const std::string& path, const Dict& dict, const Sequences* sequences) const {
    const std::optional<Sequences> own = SequencesOf(dict, path, options_, declared_);
    if (own.has_value()) {
      TORCH_CHECK_VALUE(is_whole() || own->num_samples() == batch_size_, "mimo: ", Name(own->path),
                        " is of ", own->num_samples(), " sequences, but the batch has ",
                        batch_size_, " samples (", named_, ")");
      sequences = &*own;
    }
    std::map<std::string, Declared> packed;  // by key
    for (const Packed& pair : kPacked) {
      const at::Tensor* grid = FindTensor(dict, pair.grid);
      if (grid == nullptr || FindTensor(dict, pair.rows) == nullptr) continue;
      const std::string grid_path = Join(path, pair.grid), rows_path = Join(path, pair.rows);
      if (Find(declared_, rows_path, pair.rows) != nullptr ||
          Find(options_.batch_dims, rows_path, pair.rows) != nullptr)
        continue;
      const Declared* images = Find(declared_, grid_path, pair.grid);
      if (images == nullptr && is_whole()) continue;
      if (images == nullptr) RefuseGrid(grid_path, pair.grid, *grid);
      packed[pair.rows].table = std::make_shared<Ownership>(Patches(grid_path, *grid, *images));
    }
    const Declared* videos = Find(declared_, Join(path, "video_grid_thw"), "video_grid_thw");
    if (videos != nullptr) packed["second_per_grid_ts"] = *videos;
    Dict fields;
    fields.reserve(dict.size());
    for (const Field& field : dict) {
      const auto it = packed.find(field.key);
      fields.push_back({field.key, Cut(Join(path, field.key), field.key, field.value,
                                       it == packed.end() ? nullptr : &it->second, sequences)});
    }
    return fields;
  }

  // Images of t * h * w patches each. Reads the grid's values: on the CPU.
  Ownership Patches(const std::string& path, const at::Tensor& grid, const Declared& images) const {
    TORCH_CHECK_VALUE(grid.dim() == 2 && grid.size(1) == 3, "mimo: ", Name(path, grid),
                      " must be [images, 3], the t, h and w of each image");
    CheckTable(Name(path, grid), images, grid.size(0));
    const at::Tensor values = grid.to(at::kCPU, at::kLong).contiguous();
    const absl::Span<const int64_t> thw(values.const_data_ptr<int64_t>(),
                                        static_cast<size_t>(values.numel()));
    return ValueOf(MakeOwnership(RowsPerSample(*images.table, images.rows_of),
                                 ValueOf(TokensOfGrid(thw), Name(path, grid))),
                   Name(path, grid));
  }

  const Value& batch_;
  const SliceOptions& options_;
  const std::vector<int64_t>* const order_;
  const Declarations declared_;
  int64_t batch_size_ = 0;
  std::string named_;  // whose batch size that is; empty: nothing is cut by sample
  bool is_guess_ = false;
  Range samples_;  // of this rank
};

void CheckIsPermutation(absl::Span<const int64_t> order) {
  std::vector<bool> seen(order.size(), false);
  for (const int64_t sample : order) {
    const bool fits = sample >= 0 && sample < static_cast<int64_t>(order.size());
    TORCH_CHECK_VALUE(fits && !seen[static_cast<size_t>(sample)], "mimo: an order of ",
                      order.size(), " samples has each of 0 to ", order.size() - 1,
                      " once, but it holds ", sample, fits ? " twice" : "");
    seen[static_cast<size_t>(sample)] = true;
  }
}

}  // namespace

Value Slice(const Value& batch, const SliceOptions& options) {
  TORCH_CHECK_VALUE(options.dp_size >= 1, "mimo: dp_size must be 1 or more, but is ",
                    options.dp_size);
  TORCH_CHECK_VALUE(options.dp_rank >= 0 && options.dp_rank < options.dp_size, "mimo: dp_rank ",
                    options.dp_rank, " is not one of 0 to dp_size - 1 = ", options.dp_size - 1);
  Value part = Slicer(batch, options, nullptr).Cut("", "", batch);
  return options.dp_size == 1 ? batch : part;
}

Value Reorder(const Value& batch, absl::Span<const int64_t> order, const SliceOptions& options) {
  CheckIsPermutation(order);
  const std::vector<int64_t> samples(order.begin(), order.end());
  SliceOptions whole = options;
  whole.dp_rank = 0;
  whole.dp_size = 1;
  const auto count = static_cast<int64_t>(samples.size());
  TORCH_CHECK_VALUE(options.batch_size.value_or(count) == count, "mimo: batch_size is ",
                    *options.batch_size, ", but the order is of ", count, " samples");
  whole.batch_size = count;
  return Slicer(batch, whole, &samples).Cut("", "", batch);
}

}  // namespace lockstep::mimo
