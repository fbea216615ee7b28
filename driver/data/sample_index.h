// Where the samples of a file begin: built once, kept in a cache folder, rebuilt when the file has
// changed.
//
//   absl::StatusOr<IndexedFile> file = OpenIndexed("train.jsonl.gz", Layout::kLines, cache_folder);
//   file->bytes();         // the text, unpacked
//   file->begins()[17];    // where sample 17 begins in it
//
// A data set that is read from its start to reach sample i cannot be shuffled or resumed. The index
// is eight bytes for each sample, in a file that is mapped: a rank touches the pages that it needs.
//
// A gzip file has no random access, so its text is kept next to the index, unpacked. So are the
// rows of a Parquet file, whose groups are compressed each as a whole. An index of
// "access points" into the compressed bytes would save that space and cost half a megabyte of
// unpacking for every sample. Ranks and runs of one machine share the cache folder: one of them
// builds while the others wait. Files of the cache appear once they are complete. A plain file of
// less than kMinBytesToKeep is indexed in memory by each process.
//
// Thread-safe once open.

#ifndef LOCKSTEP_DRIVER_DATA_SAMPLE_INDEX_H_
#define LOCKSTEP_DRIVER_DATA_SAMPLE_INDEX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "driver/data/mapped_file.h"

namespace lockstep::data {

inline constexpr uint64_t kMinBytesToKeep = uint64_t{1} << 20;

enum class Layout : uint32_t {
  kLines = 1,  // a sample is a line that is not blank
  kTar = 2,    // a sample is a run of members with one stem (see SplitTarName)
  kWhole = 3,  // a sample is the file; an empty file has none
  kRows = 4,   // a sample is a row behind its size (see parquet/row.h)
  kJson = 5,   // a sample is an element of an array (see json_array.h), otherwise as kLines
};

// Unpacks a file that is not gzip.
struct Unpacking {
  std::string name = {};  // a file that is unpacked in two ways is kept twice, if they differ in it
  // Writes the unpacked bytes of the file at `path`, and returns the first error of `write`.
  // Errors begin with the path.
  std::function<absl::Status(const std::string& path,
                             const std::function<absl::Status(absl::string_view)>& write)>
      unpack = nullptr;
};

// Where samples begin in a text, in order.
struct SampleBegins {
  std::vector<uint64_t> begins;
  uint64_t blank_lines = 0;
};

// Returns InvalidArgument, with the place, for a broken archive. A byte order mark at the start of
// lines is passed over.
absl::StatusOr<SampleBegins> FindSamples(absl::string_view bytes, Layout layout);

struct IndexedFile {
  std::shared_ptr<const MappedFile> original;  // under the path that was given
  std::shared_ptr<const MappedFile> unpacked;  // nullptr if the original is read as it is
  std::shared_ptr<const MappedFile> index;     // nullptr if the begins are in memory
  std::vector<uint64_t> begins_in_memory;
  uint64_t blank_lines = 0;

  absl::string_view bytes() const { return (unpacked ? unpacked : original)->bytes(); }
  absl::Span<const uint64_t> begins() const;
};

// Opens a file and its index; builds what the cache lacks. Returns an error that names the file if
// it cannot be read, is broken, or changes meanwhile, and one that names the cache folder if that
// cannot be written. Waits for another process that builds in that folder, see cache_lock.h.
absl::StatusOr<IndexedFile> OpenIndexed(const std::string& path, Layout layout,
                                        const std::string& cache_folder,
                                        const Unpacking& unpacking = {});

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_SAMPLE_INDEX_H_
