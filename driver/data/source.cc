#include "driver/data/source.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "driver/data/json_array.h"
#include "driver/data/parquet/row.h"
#include "driver/data/tar.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr char kKnown[] = ".parquet, .jsonl, .ndjson, .json, .txt, .tar, .tgz, and these with .gz";
constexpr char kFormats[] = "\"jsonl\", \"json\", \"lines\", \"text\", \"tar\" or \"parquet\"";

// The format that a file's name tells, or nothing.
std::optional<Format> FormatOfName(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  absl::string_view plain = lower;
  if (absl::EndsWith(plain, ".parquet")) return Format::kParquet;
  if (absl::EndsWith(plain, ".tgz")) return Format::kTar;
  absl::ConsumeSuffix(&plain, ".gz");
  if (absl::EndsWith(plain, ".jsonl") || absl::EndsWith(plain, ".ndjson"))
    return Format::kJsonLines;
  if (absl::EndsWith(plain, ".json")) return Format::kJson;
  if (absl::EndsWith(plain, ".txt")) return Format::kLines;
  if (absl::EndsWith(plain, ".tar")) return Format::kTar;
  return std::nullopt;
}

absl::StatusOr<std::optional<Format>> FormatOfOption(const std::string& format) {
  if (format.empty()) return std::optional<Format>();
  if (format == "jsonl") return std::optional<Format>(Format::kJsonLines);
  if (format == "json") return std::optional<Format>(Format::kJson);
  if (format == "lines") return std::optional<Format>(Format::kLines);
  if (format == "text") return std::optional<Format>(Format::kText);
  if (format == "tar") return std::optional<Format>(Format::kTar);
  if (format == "parquet") return std::optional<Format>(Format::kParquet);
  return absl::InvalidArgumentError(
      absl::StrCat("format must be ", kFormats, ", not \"", format, "\""));
}

Layout LayoutOf(Format format) {
  if (format == Format::kTar) return Layout::kTar;
  if (format == Format::kParquet) return Layout::kRows;
  if (format == Format::kJson) return Layout::kJson;
  return format == Format::kText ? Layout::kWhole : Layout::kLines;
}

absl::Status UnknownEnding(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": the name does not tell what it holds (expected ", kKnown,
                   "); give format = ", kFormats));
}

// Appends the rows of a Parquet file to what is kept, each behind its size.
absl::Status UnpackRows(const SourceOptions& options, const std::string& path,
                        const std::function<absl::Status(absl::string_view)>& write) {
  const absl::StatusOr<UnpackParquetFunction> unpack = options.load_unpack_parquet();
  if (!unpack.ok()) {
    return absl::Status(unpack.status().code(),
                        absl::StrCat(path, ": ", unpack.status().message()));
  }
  absl::Status status;
  const std::string problem = (*unpack)(path, options.columns, [&](std::string_view row) {
    std::string size;
    AppendSize(row.size(), &size);
    status = write(size);
    if (status.ok()) status = write({row.data(), row.size()});
    return std::string(status.message());
  });
  return !status.ok() || problem.empty() ? status : absl::InvalidArgumentError(problem);
}

// Returns the files of a folder and of the folders in it, by name. Leaves out hidden files, and
// those whose names begin with "_" (as "_SUCCESS"). Without `format` it also leaves out files that
// no format has, and .json files: next to data they describe it, as Hugging Face's
// dataset_info.json does. Follows links. A link that leads back to a folder on its own path is an
// error, because it would repeat the samples.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder,
                                                 std::optional<Format> format) {
  std::vector<std::string> files;
  std::optional<Format> first;
  std::error_code error;
  std::vector<fs::path> above = {fs::canonical(folder, error)};  // real folders down to the entry's
  fs::recursive_directory_iterator entry(folder, fs::directory_options::follow_directory_symlink,
                                         error);
  for (const fs::recursive_directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code none;  // a link that leads nowhere is no folder
    const bool is_folder = entry->is_directory(none);
    if (name[0] == '.' || name[0] == '_') {
      if (is_folder) entry.disable_recursion_pending();
      continue;
    }
    if (is_folder) {
      const fs::path real = fs::canonical(entry->path(), none);
      above.resize(static_cast<size_t>(entry.depth()) + 1);
      if (std::find(above.begin(), above.end(), real) != above.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(folder, ": the link ", entry->path().string(), " leads back to ",
                         real.string(), ", a folder that it is in; its samples would come again"));
      }
      above.push_back(real);
      continue;
    }
    if (!format.has_value()) {
      const std::optional<Format> own = FormatOfName(name);
      if (!own.has_value() || *own == Format::kJson) continue;
      if (first.has_value() && *first != *own) {
        return absl::InvalidArgumentError(
            absl::StrCat(folder, ": the folder holds files of several formats, ", files[0], " and ",
                         entry->path().string(), "; give a list of files, or format = "));
      }
      first = own;
    }
    files.push_back(entry->path().string());
  }
  if (error) return absl::UnknownError(absl::StrCat("cannot list ", folder, ": ", error.message()));
  if (files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": the folder has no samples (expected files that end in ", kKnown,
                     "; a folder's .json files are read with format = \"json\")"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<Source> Source::Open(const std::vector<std::string>& paths,
                                    const SourceOptions& options) {
  const absl::StatusOr<std::optional<Format>> format = FormatOfOption(options.format);
  if (!format.ok()) return format.status();
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    absl::StatusOr<std::vector<std::string>> inside = FilesOf(path, *format);
    if (!inside.ok()) return inside.status();
    files.insert(files.end(), inside->begin(), inside->end());
  }
  if (files.empty()) return absl::InvalidArgumentError("the list of files is empty");
  Source source;
  for (const std::string& path : files) {
    std::error_code error;
    if (!fs::exists(path, error))
      return absl::NotFoundError(absl::StrCat("cannot open ", path, ": there is no such file"));
    const std::optional<Format> own = format->has_value() ? *format : FormatOfName(path);
    if (!own.has_value()) return UnknownEnding(path);
    Unpacking unpacking;
    if (*own == Format::kParquet) {
      unpacking.name = absl::StrCat("\nParquet\n", absl::StrJoin(options.columns, "\n"));
      unpacking.unpack = std::bind_front(UnpackRows, std::cref(options));
    } else if (!options.columns.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": columns = is only for Parquet files"));
    }
    absl::StatusOr<IndexedFile> file =
        OpenIndexed(path, LayoutOf(*own), options.cache_folder, unpacking);
    if (!file.ok()) return file.status();
    source.ends_.push_back(source.size() + static_cast<int64_t>(file->begins().size()));
    source.parts_.push_back({*own, *std::move(file)});
  }
  return source;
}

std::pair<const Source::Part*, size_t> Source::Find(int64_t number) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), number);
  const auto part = static_cast<size_t>(end - ends_.begin());
  const int64_t first = part == 0 ? 0 : ends_[part - 1];
  return {&parts_[part], static_cast<size_t>(number - first)};
}

absl::StatusOr<Sample> Source::Read(int64_t number) const {
  const auto [part, index] = Find(number);
  const IndexedFile& file = part->file;
  absl::Status status = file.original->CheckUnchanged();
  if (!status.ok()) return status;
  const absl::Span<const uint64_t> begins = file.begins();
  const absl::string_view bytes = file.bytes();
  if (begins[index] >= bytes.size()) {
    return absl::InternalError(absl::StrCat(file.original->path(), ": its index, ",
                                            file.index->path(), ", is damaged; delete it"));
  }
  Sample sample;
  sample.format = part->format;
  if (part->format == Format::kTar) {
    for (uint64_t at = begins[index];;) {
      absl::StatusOr<std::optional<TarMember>> member = NextTarMember(bytes, at);
      if (!member.ok()) return member.status();
      if (!member->has_value()) break;
      at = (*member)->next;
      const TarField field = SplitTarName((*member)->name);
      if (field.stem.empty()) continue;
      if (!sample.members.empty() && field.stem != sample.stem) break;
      sample.stem = std::string(field.stem);
      sample.members.emplace_back(field.field, bytes.substr((*member)->begin, (*member)->size));
    }
    return sample;
  }
  sample.text = bytes.substr(begins[index]);
  if (part->format == Format::kParquet) {
    const uint64_t size = sample.text.size() < 8 ? 0 : SizeAt(sample.text.data());
    sample.text = sample.text.substr(std::min<size_t>(8, sample.text.size())).substr(0, size);
  } else if (part->format == Format::kJson && IsJsonArray(bytes)) {
    sample.text = sample.text.substr(0, EndOfJson(sample.text, 0));
  } else if (part->format != Format::kText) {
    sample.text = sample.text.substr(0, sample.text.find('\n'));
    absl::ConsumeSuffix(&sample.text, "\r");
  }
  return sample;
}

std::string Source::Describe(int64_t number) const {
  const auto [part, index] = Find(number);
  const std::string& path = part->file.original->path();
  if (part->format == Format::kText) return path;
  if (part->format == Format::kTar) {
    const absl::StatusOr<Sample> sample = Read(number);
    return absl::StrCat(path, sample.ok() ? ", member " : ", sample ",
                        sample.ok() ? sample->stem : absl::StrCat(index + 1));
  }
  if (part->format == Format::kParquet) return absl::StrCat(path, ", row ", index + 1);
  if (part->format == Format::kJson && IsJsonArray(part->file.bytes()))
    return absl::StrCat(path, ", element ", index + 1);
  size_t line = index + 1;
  if (part->file.blank_lines > 0 && part->file.original->CheckUnchanged().ok()) {
    const absl::string_view before = part->file.bytes().substr(0, part->file.begins()[index]);
    line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  }
  return absl::StrCat(path, ", line ", line);
}

}  // namespace lockstep::data
