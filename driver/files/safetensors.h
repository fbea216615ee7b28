// Files of named tensors in the safetensors format (https://github.com/huggingface/safetensors):
// eight bytes with the header's length, the header in JSON, then the tensors' bytes back to back.
//
//   absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open("model.safetensors");
//   for (const TensorEntry& entry : file->header().entries) Use(entry.name, file->bytes(entry));
//
// The failure this prevents: a file that comes from elsewhere, or that a killed run left behind,
// and that is believed. A header may lie about lengths, offsets and shapes; nothing of it is used
// before all of it is checked, and what is wrong is said in one sentence that names the file. The
// data is mapped, not read: a rank that needs a part touches the pages of that part.
//
// Not for writing tensors one by one into a file that exists: a header is written once, first.
// Nothing here knows of tensors, only of their names, dtypes, shapes and bytes. Thread-safe once
// open.

#ifndef LOCKSTEP_DRIVER_FILES_SAFETENSORS_H_
#define LOCKSTEP_DRIVER_FILES_SAFETENSORS_H_

#include <cstddef>
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
  std::vector<int64_t> shape;  // {} of a scalar; at most 64 dimensions
  uint64_t begin = 0;          // its bytes, from the end of the header on
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;             // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Bytes of an element, or 0 where the format has no such dtype.
uint64_t DtypeBytes(absl::string_view dtype);

// Reads the JSON of a header whose data has `data_bytes` bytes. InvalidArgument says what is wrong:
// text that is no JSON, an entry without dtype, shape or offsets, a name that appears twice,
// tensors that overlap, leave gaps, end beyond the data or do not fit their shapes.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes);

// The file's first bytes, up to where the data begins, at a multiple of 8. Gives the entries their
// `begin` and `end`, in the order given. InvalidArgument where a name is empty, is "__metadata__",
// appears twice or is no UTF-8, or where the format lacks the dtype.
absl::StatusOr<std::string> WriteSafetensorsHeader(SafetensorsHeader& header);

// A file that is mapped while this lives.
class SafetensorsFile {
 public:
  // The error names the file: NotFound where it cannot be opened, InvalidArgument as above.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }

  // Where the tensor's bytes are, entry.end - entry.begin of them. May be written to: that changes
  // a copy of this process's own, never the file. Whoever cuts the file short while it is mapped
  // has this process end by SIGBUS; files that take their names once they are complete are never
  // cut.
  char* bytes(const TensorEntry& entry) const { return data_ + entry.begin; }

  // Keeps the bytes where they are while the file itself is gone.
  std::shared_ptr<void> mapping() const { return mapping_; }

 private:
  SafetensorsHeader header_;
  std::shared_ptr<void> mapping_;
  char* data_ = nullptr;  // where the tensors' bytes begin
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_SAFETENSORS_H_
