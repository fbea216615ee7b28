// Finds the elements of a file that is one JSON array, [{...}, {...}], as Alpaca's data is.
//
//   if (IsJsonArray(bytes)) {
//     absl::StatusOr<std::vector<uint64_t>> begins = FindElements(bytes);
//     bytes.substr((*begins)[17], EndOfJson(bytes, (*begins)[17]) - (*begins)[17]);  // element 17
//   }
//
// A parser would need several times the file's size in memory, and no sample could be read alone.
// So this only counts brackets, outside of strings: one pass, no memory. An element is parsed when
// it is read, and errors in it are found there. Thread-safe.

#ifndef LOCKSTEP_DRIVER_DATA_JSON_ARRAY_H_
#define LOCKSTEP_DRIVER_DATA_JSON_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::data {

// Returns whether the text begins with "[", behind spaces and a byte order mark.
bool IsJsonArray(absl::string_view bytes);

// Returns where the value that begins at `at` ends, or npos if the text ends within it. The value
// of a text that is not JSON ends somewhere.
size_t EndOfJson(absl::string_view bytes, size_t at);

// Returns where each element begins. Returns InvalidArgument if the array has no end, if something
// follows it, or if a comma is missing or superfluous. `bytes` must be an array by IsJsonArray.
absl::StatusOr<std::vector<uint64_t>> FindElements(absl::string_view bytes);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_JSON_ARRAY_H_
