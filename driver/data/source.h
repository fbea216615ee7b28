// Samples in files, by number: JSON lines, JSON arrays, lines of text, whole texts, tar shards,
// tables.
//
//   absl::StatusOr<Source> source = Source::Open({"train.jsonl"}, {.cache_folder = cache});
//   absl::StatusOr<Sample> sample = source->Read(source->size() - 1);
//   sample->text;                                  // one JSON value, not parsed yet
//   source->Describe(sample_number);                  // "train.jsonl, line 12", for messages
//
// Samples are numbered from 0 through all files, in the order in which the files are given; a
// folder's files come in the order of their names. Every file is mapped, and a sample is a view
// into it: nothing is parsed or copied here. Before each read the file is compared with what it was
// when it was opened (see mapped_file.h), and the index is built once (see sample_index.h).
//
// Formats: "jsonl" (.jsonl, .ndjson), "json" (.json: one array; or lines), "lines" (.txt), "text"
// (whole files; only where it is asked for), "tar" (.tar, .tgz); each also as .gz. "parquet"
// (.parquet), whose rows are unpacked into the cache once. Thread-safe once open.

#ifndef LOCKSTEP_DRIVER_DATA_SOURCE_H_
#define LOCKSTEP_DRIVER_DATA_SOURCE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "driver/data/parquet/unpack.h"
#include "driver/data/sample_index.h"

namespace lockstep::data {

enum class Format { kJsonLines, kJson, kLines, kText, kTar, kParquet };

struct SourceOptions {
  // "jsonl", "json", "lines", "text", "tar", "parquet"; empty: by the names of the files
  std::string format = {};
  std::string cache_folder = {};          // where indexes are kept
  std::vector<std::string> columns = {};  // of Parquet files; empty: all
  // Returns what reads Parquet, or why nothing does. Called for files that the cache does not have.
  absl::StatusOr<UnpackParquetFunction> (*load_unpack_parquet)() = nullptr;
};

// Views into the mapped files: valid while the source lives.
struct Sample {
  Format format = Format::kJsonLines;
  // A line without its end, an element of an array, a whole text, or a row (see parquet/row.h).
  absl::string_view text;
  // The stem and, by field, the content of a tar shard's sample.
  std::string stem;
  std::vector<std::pair<std::string, absl::string_view>> members;
};

class Source {
 public:
  // Opens files and folders. Returns an error, which names the file, for one that is not there or
  // cannot be read, for an unknown ending and for a broken archive. A folder without samples is an
  // error, and so is one with files of several formats.
  static absl::StatusOr<Source> Open(const std::vector<std::string>& paths,
                                     const SourceOptions& options);

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // Returns sample `number`, from 0 to size() - 1. Returns FailedPrecondition, with the file's
  // name, if the file has changed.
  absl::StatusOr<Sample> Read(int64_t number) const;

  // Returns the file, and the line, the element or the stem, of a sample. Counts the file's lines
  // if some of them are blank.
  std::string Describe(int64_t number) const;

 private:
  struct Part {
    Format format;
    IndexedFile file;
  };
  // The part that has a sample, and the sample's number in it.
  std::pair<const Part*, size_t> Find(int64_t number) const;

  std::vector<Part> parts_;
  std::vector<int64_t> ends_;  // of each part: the number of the sample after its last
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_SOURCE_H_
