// Files of named tensors in the safetensors format (https://github.com/huggingface/safetensors):
// eight bytes with the header's length, the header in JSON, then the tensors' bytes without gaps.
//
//    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open("model.safetensors");
//    for (const TensorEntry& entry : file->header().entries) Use(entry.name, file->bytes(entry));
//
// The failure this prevents: a program trusts a file from elsewhere, or one that a killed run left
// behind. Lengths, offsets and shapes in a header may be wrong. Nothing of a header is used before
// all of it is checked, and the error names the file and the mistake. The data is mapped, not read:
// a rank that needs a part loads only the pages of that part.
//
// Not for writing tensors one by one into an existing file: a header is written once, first.
// Nothing here depends on tensors, only on their names, dtypes, shapes and bytes. Thread-safe once
// open.

#ifndef LOCKSTEP_DRIVER_FILES_SAFETENSORS_H_
#define LOCKSTEP_DRIVER_FILES_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::driver {

struct TensorEntry {
  std::string name;
  std::string dtype;           // as the format spells it: "F32", "BF16", "I64", "BOOL", ...
  std::vector<int64_t> shape;  // {} for a scalar; at most 64 dimensions
  uint64_t begin = 0;          // byte range, counted from the end of the header
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;             // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Returns the bytes of an element, or 0 if the format has no such dtype.
uint64_t DtypeBytes(absl::string_view dtype);

// Reads the JSON of a header whose data has `data_bytes` bytes. Returns InvalidArgument with the
// mistake: invalid JSON, an entry without dtype, shape or offsets, or a name that appears twice.
// Other mistakes are tensors that overlap, leave gaps, end beyond the data or do not fit their
// shapes.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes);

// Returns the file's first bytes, up to the data, which begins at a multiple of 8. Sets `begin` and
// `end` of the entries, in the given order. Returns InvalidArgument if a name is empty, is
// "__metadata__", appears twice or is not UTF-8, or if the format lacks the dtype.
absl::StatusOr<std::string> WriteSafetensorsHeader(SafetensorsHeader& header);

// A file that is mapped while this object lives.
class SafetensorsFile {
 public:
  // Opens a file. The error names the file: NotFound if it cannot be opened, InvalidArgument as
  // above.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }

  // Returns the tensor's bytes, entry.end - entry.begin of them. Writing to them changes a private
  // copy of this process, never the file. If another process cuts the file short while it is
  // mapped, this process ends by SIGBUS. Files that get their names once they are complete are
  // never cut.
  char* bytes(const TensorEntry& entry) const { return data_ + entry.begin; }

  // Returns an owner that keeps the bytes mapped after this object is gone.
  std::shared_ptr<void> mapping() const { return mapping_; }

 private:
  SafetensorsHeader header_;
  std::shared_ptr<void> mapping_;
  char* data_ = nullptr;  // where the tensors' bytes begin
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_SAFETENSORS_H_
