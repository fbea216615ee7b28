// Decides how slice.h cuts the value of a key: by the key's name, and by the caller's options.

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

// A packed tensor and its grid [images, 3]: the tensor has t * h * w rows for each image.
struct Packed {
  const char* grid;
  const char* rows;
};
inline constexpr Packed kPacked[] = {{"grid_thw", "pixel_values"},
                                     {"grid_thw", "hidden_states"},
                                     {"image_grid_thw", "pixel_values"},
                                     {"video_grid_thw", "pixel_values_videos"}};

bool IsGrid(const std::string& key);

// Returns whether `dict` has the grid of this key's rows.
bool IsPacked(const Dict& dict, const std::string& key);

// Returns whether the tensor holds positions of several axes: normally [axes, batch, ...].
bool HasAxes(const std::string& key, const at::Tensor& tensor);

// Returns the tensor of that key, or nullptr.
const at::Tensor* FindTensor(const Dict& dict, const std::string& key);

// Returns whether the value contains tensors or ownership tables.
bool HoldsRows(const Value& value);

// Returns the map's element for a key, found by its path, or else by its name; or nullptr.
template <typename T>
const T* Find(const std::map<std::string, T>& map, const std::string& path,
              const std::string& key) {
  if (map.empty()) return nullptr;
  auto it = map.find(path);
  if (it == map.end()) it = map.find(key);
  return it == map.end() ? nullptr : &it->second;
}

// Returns the value, or throws c10::ValueError with `where`.
template <typename T>
T ValueOf(absl::StatusOr<T> result, const std::string& where) {
  TORCH_CHECK_VALUE(result.ok(), std::string(result.status().message()), " (", where, ")");
  return *std::move(result);
}

// The caller's declaration for a key's rows, as a table.
struct Declared {
  Table table;
  RowsOf rows_of = RowsOf::kTokens;
  bool as_counts = true;  // declared by rows_per_sample
};
using Declarations = std::map<std::string, Declared>;  // by key or path, of keys that the batch has

// Collects the declarations from `ownership` and `rows_per_sample`. Throws c10::ValueError for a
// declaration of a key that the batch lacks. It is allowed if all its rows are 0 and the name
// resembles no key without a declaration.
Declarations CollectDeclared(const Value& batch, const SliceOptions& options);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_BATCH_RULES_H_
