// Members of a tar archive, in the formats that tar, GNU tar, Python's tarfile and WebDataset
// write.
//
//   uint64_t at = 0;
//   for (;;) {
//     absl::StatusOr<std::optional<TarMember>> member = NextTarMember(archive, at);
//     if (!member.ok() || !member->has_value()) break;
//     Use((*member)->name, archive.substr((*member)->begin, (*member)->size));
//     at = (*member)->next;
//   }
//
// Reads ustar, GNU long names, pax paths and sizes, and sizes beyond 8 GiB. Every header's checksum
// is checked, and nothing is read beyond the archive.

#ifndef LOCKSTEP_DRIVER_DATA_TAR_H_
#define LOCKSTEP_DRIVER_DATA_TAR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::data {

// A regular file in an archive. Positions are bytes from the start of the archive.
struct TarMember {
  std::string name;
  uint64_t at = 0;     // where its first header is
  uint64_t begin = 0;  // where its content is
  uint64_t size = 0;
  uint64_t next = 0;  // where the header after it is
};

// Returns the first regular file whose header is at `at` or later; folders are passed over. Returns
// nothing at the end of the archive, which blocks of zeros mark. Returns InvalidArgument for bytes
// that are not a header, for an archive that is cut short (so is one of 0 bytes), and for links,
// devices and sparse files.
absl::StatusOr<std::optional<TarMember>> NextTarMember(absl::string_view archive, uint64_t at);

// A member's place in a data set, by WebDataset's rule: files whose names are alike up to the first
// dot of the last part are one sample. "dir/0001.seg.PNG" is the field "seg.png" of "dir/0001".
// Hidden files (".DS_Store", "._x") have neither. A name without a dot has no field.
struct TarField {
  absl::string_view stem;
  std::string field;
};
TarField SplitTarName(absl::string_view name);

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_TAR_H_
