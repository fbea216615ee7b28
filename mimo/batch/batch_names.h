// Names of a batch's keys for messages. Private to slice.h's sources.

#ifndef LOCKSTEP_MIMO_BATCH_BATCH_NAMES_H_
#define LOCKSTEP_MIMO_BATCH_BATCH_NAMES_H_

#include <set>
#include <string>

#include "ATen/core/TensorBody.h"
#include "mimo/batch/slice.h"

namespace lockstep::mimo {

// Return the name for messages, as `"clip.pixel_values" [10, 3]`.
std::string Name(const std::string& path);
std::string Name(const std::string& path, const at::Tensor& tensor);

// Joins "clip" and "pixel_values" to "clip.pixel_values".
std::string Join(const std::string& path, const std::string& key);

// Returns the keys and paths of everything in a batch.
std::set<std::string> NamesIn(const Value& batch);

// Returns whether a name in `names` is at most two edits from `name`.
bool IsNear(const std::string& name, const std::set<std::string>& names);

// Returns `; did you mean "pixel_values"?`, or the names in the batch if no name is near.
std::string Hint(const std::string& name, const std::set<std::string>& names);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_BATCH_NAMES_H_
