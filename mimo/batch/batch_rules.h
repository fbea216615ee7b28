// What the rules of slice.h read off a key: its name, and what is declared of it.

#ifndef LOCKSTEP_MIMO_BATCH_BATCH_RULES_H_
#define LOCKSTEP_MIMO_BATCH_BATCH_RULES_H_

#include <map>
#include <string>

#include "ATen/core/TensorBody.h"
#include "absl/status/statusor.h"
#include "c10/util/Exception.h"
#include "mimo/batch/ownership.h"
#include "mimo/batch/slice.h"

namespace lockstep::mimo {

// A tensor beside a grid [images, 3] that has t * h * w rows for each image.
struct Packed {
  const char* grid;
  const char* rows;
};
inline constexpr Packed kPacked[] = {{"grid_thw", "pixel_values"},
                                     {"grid_thw", "hidden_states"},
                                     {"image_grid_thw", "pixel_values"},
                                     {"video_grid_thw", "pixel_values_videos"}};

bool IsGrid(const std::string& key);

// Whether `dict` has the grid of this key's rows.
bool IsPacked(const Dict& dict, const std::string& key);

// Positions of several axes: [axes, batch, ...], as a rule.
bool HasAxes(const std::string& key, const at::Tensor& tensor);

// The tensor of that key, or nullptr.
const at::Tensor* FindTensor(const Dict& dict, const std::string& key);

// Whether there are tensors, or ownership tables, in it.
bool HoldsRows(const Value& value);

// What a map says of a key: by its path, or else by its name.
template <typename T>
const T* Find(const std::map<std::string, T>& map, const std::string& path,
              const std::string& key) {
  if (map.empty()) return nullptr;
  auto it = map.find(path);
  if (it == map.end()) it = map.find(key);
  return it == map.end() ? nullptr : &it->second;
}

// The value, or c10::ValueError that says where.
template <typename T>
T ValueOf(absl::StatusOr<T> result, const std::string& where) {
  TORCH_CHECK_VALUE(result.ok(), std::string(result.status().message()), " (", where, ")");
  return *std::move(result);
}

// What is declared of a key's rows, as a table.
struct Declared {
  Table table;
  RowsOf rows_of = RowsOf::kTokens;
  bool as_counts = true;  // by rows_per_sample
};
using Declarations = std::map<std::string, Declared>;  // by key or path, of what the batch has

// From `ownership` and `rows_per_sample`. Throws c10::ValueError where something is declared of a
// key that the batch lacks, but rows that are all 0 and whose name is near no other key.
Declarations CollectDeclared(const Value& batch, const SliceOptions& options);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_BATCH_RULES_H_
