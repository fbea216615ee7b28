// What the keys of a batch are called in messages. See slice.h.

#ifndef LOCKSTEP_MIMO_BATCH_BATCH_NAMES_H_
#define LOCKSTEP_MIMO_BATCH_BATCH_NAMES_H_

#include <set>
#include <string>

#include "ATen/core/TensorBody.h"
#include "mimo/batch/slice.h"

namespace lockstep::mimo {

// `"clip.pixel_values" [10, 3]`
std::string Name(const std::string& path);
std::string Name(const std::string& path, const at::Tensor& tensor);

// "clip" and "pixel_values": "clip.pixel_values".
std::string Join(const std::string& path, const std::string& key);

// Keys and paths of all that a batch holds.
std::set<std::string> NamesIn(const Value& batch);

// Whether one of them is two edits away, or fewer.
bool IsNear(const std::string& name, const std::set<std::string>& names);

// `; did you mean "pixel_values"?`, or what the batch has where no name is near.
std::string Hint(const std::string& name, const std::set<std::string>& names);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_BATCH_NAMES_H_
