#include "driver/data/sample_index.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "driver/data/cache_lock.h"
#include "driver/data/json_array.h"
#include "driver/data/parquet/row.h"
#include "driver/data/tar.h"
#include "driver/files/gzip_reader.h"
#include "driver/files/new_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// --- Finding samples -----------------------------------------------------------------------------

bool IsBlank(const char* begin, const char* end) {
  return std::all_of(begin, end, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
}

SampleBegins FindLines(absl::string_view bytes) {
  SampleBegins found;
  const char* const start = bytes.data();
  const char* const end = start + bytes.size();
  const char* line = absl::StartsWith(bytes, "\xef\xbb\xbf") ? start + 3 : start;
  while (line < end) {
    const auto* stop =
        static_cast<const char*>(std::memchr(line, '\n', static_cast<size_t>(end - line)));
    if (stop == nullptr) stop = end;
    if (IsBlank(line, stop)) {
      ++found.blank_lines;
    } else {
      found.begins.push_back(static_cast<uint64_t>(line - start));
    }
    line = stop + 1;
  }
  return found;
}

// Members of one stem must be neighbours: a stem that comes again would be cut in two. Stems are
// remembered by their hashes.
absl::StatusOr<SampleBegins> FindTarSamples(absl::string_view bytes) {
  SampleBegins found;
  std::unordered_set<size_t> stems;
  std::string stem;
  std::vector<std::string> fields;
  for (uint64_t at = 0;;) {
    absl::StatusOr<std::optional<TarMember>> member = NextTarMember(bytes, at);
    if (!member.ok()) return member.status();
    if (!member->has_value()) return found;
    at = (*member)->next;
    const std::string& name = (*member)->name;
    const TarField field = SplitTarName(name);
    const auto invalid = [&](absl::string_view problem) {
      return absl::InvalidArgumentError(absl::StrCat("the member ", name, " ", problem));
    };
    if (field.stem.empty()) continue;
    if (field.field.empty()) {
      return invalid("has no ending, which would name its field, as in 0001.jpg and 0001.json");
    }
    if (found.begins.empty() || field.stem != stem) {
      stem = std::string(field.stem);
      fields.clear();
      found.begins.push_back((*member)->at);
      if (!stems.insert(std::hash<std::string>()(stem)).second) {
        return invalid(
            absl::StrCat("does not follow the other members of ", stem,
                         "; members of one sample must be neighbours (tar --sort=name)"));
      }
    }
    if (std::find(fields.begin(), fields.end(), field.field) != fields.end())
      return invalid("is there twice");
    fields.push_back(field.field);
  }
}

absl::StatusOr<SampleBegins> FindRows(absl::string_view bytes) {
  SampleBegins found;
  for (uint64_t at = 0; at < bytes.size();) {
    if (bytes.size() - at < 8 || SizeAt(bytes.data() + at) > bytes.size() - at - 8)
      return absl::DataLossError("its unpacked rows are damaged");
    found.begins.push_back(at);
    at += 8 + SizeAt(bytes.data() + at);
  }
  return found;
}

// The elements of an array, or lines. Other values of several lines hold samples in a place that
// nobody knows.
absl::StatusOr<SampleBegins> FindJson(absl::string_view bytes) {
  SampleBegins found;
  if (IsJsonArray(bytes)) {
    absl::StatusOr<std::vector<uint64_t>> begins = FindElements(bytes);
    if (!begins.ok()) return begins.status();
    found.begins = *std::move(begins);
    return found;
  }
  found = FindLines(bytes);
  if (found.begins.empty()) return found;
  const uint64_t first = found.begins.front();
  const size_t end = EndOfJson(bytes, first);
  if (end != absl::string_view::npos && absl::StrContains(bytes.substr(first, end - first), "\n")) {
    return absl::InvalidArgumentError(
        "it is one object; expected an array of samples, [{...}, {...}], or a sample in each line. "
        "If the object has them in a field, \"data\" for example, jq -c '.data[]' FILE > "
        "FILE.jsonl "
        "writes them as lines");
  }
  return found;
}

// --- The cache -----------------------------------------------------------------------------------

// The start of an index file. The begins follow.
struct Header {
  char magic[8];
  uint32_t layout;
  uint32_t is_unpacked;
  FileIdentity original;
  uint64_t unpacked_bytes;
  uint64_t blank_lines;
  uint64_t count;
};
static_assert(sizeof(Header) == 64);
constexpr char kMagic[8] = {'L', 'S', 'I', 'N', 'D', 'E', 'X', '2'};

bool IsGzip(absl::string_view bytes) { return absl::StartsWith(bytes, "\x1f\x8b"); }

// "train.jsonl-0123456789abcdef": files of one name in different folders have different stems.
std::string CacheStem(const std::string& path, const std::string& cache_folder,
                      const std::string& unpacking) {
  std::error_code error;
  fs::path absolute = fs::weakly_canonical(path, error);
  if (error) absolute = path;
  return absl::StrCat(
      cache_folder, "/", fs::path(path).filename().string(), "-",
      absl::Hex(base::TextHash(absl::StrCat(absolute.string(), unpacking)), absl::kZeroPad16));
}

std::string UnpackedPath(const std::string& stem, const FileIdentity& identity) {
  return absl::StrCat(stem, "-",
                      absl::Hex(base::TextHash(absl::StrCat(identity.bytes, " ", identity.mtime_ns,
                                                            " ", identity.inode)),
                                absl::kZeroPad16),
                      ".unpacked");
}

absl::Status WithAdvice(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(status.message(),
                                                  "; the cache folder must be writable and have "
                                                  "room: set LOCKSTEP_CACHE, or cache ="));
}

absl::Status Gunzip(const std::string& path,
                    const std::function<absl::Status(absl::string_view)>& write) {
  auto reader = driver::GzipReader::Open(path);
  if (!reader.ok()) return reader.status();
  std::vector<char> block(size_t{1} << 20);
  for (;;) {
    const absl::StatusOr<size_t> size = (*reader)->Read(block.data(), block.size());
    if (!size.ok()) return size.status();
    if (*size == 0) return absl::OkStatus();
    const absl::Status status = write({block.data(), *size});
    if (!status.ok()) return status;
  }
}

absl::Status Unpack(const std::string& path, const Unpacking& unpacking, const std::string& to) {
  driver::NewFile unpacked(to);
  const auto write = [&](absl::string_view bytes) {
    const absl::Status status = unpacked.Write(bytes.data(), bytes.size());
    return status.ok() ? status : WithAdvice(status);
  };
  absl::Status status = unpacking.unpack ? unpacking.unpack(path, write) : Gunzip(path, write);
  if (!status.ok()) return status;
  status = unpacked.Keep();
  return status.ok() ? status : WithAdvice(status);
}

absl::Status WriteIndex(const std::string& path, const Header& header,
                        const std::vector<uint64_t>& begins) {
  driver::NewFile file(path);
  absl::Status status = file.Write(&header, sizeof(header));
  if (status.ok()) status = file.Write(begins.data(), begins.size() * sizeof(begins[0]));
  if (status.ok()) status = file.Keep();
  return status.ok() ? status : WithAdvice(status);
}

const Header& HeaderOf(const MappedFile& index) {
  return *reinterpret_cast<const Header*>(index.bytes().data());
}

// Returns the index at `path`, or nullptr if the file does not exist or is not an index.
std::shared_ptr<const MappedFile> ReadIndex(const std::string& path) {
  absl::StatusOr<std::shared_ptr<const MappedFile>> index = MappedFile::Open(path);
  if (!index.ok() || (*index)->bytes().size() < sizeof(Header)) return nullptr;
  const Header& header = HeaderOf(**index);
  const bool fits = std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 &&
                    header.count == ((*index)->bytes().size() - sizeof(Header)) / 8;
  return fits ? *index : nullptr;
}

// Takes what the cache has of this file as it is now. Returns false where something is missing.
bool TakeCached(const std::string& stem, Layout layout, IndexedFile& file) {
  file.index = ReadIndex(stem + ".index");
  if (file.index == nullptr) return false;
  const Header& header = HeaderOf(*file.index);
  if (header.layout != static_cast<uint32_t>(layout) ||
      header.original != file.original->identity()) {
    return false;
  }
  file.blank_lines = header.blank_lines;
  if (header.is_unpacked == 0) return true;
  auto unpacked = MappedFile::Open(UnpackedPath(stem, header.original));
  if (!unpacked.ok() || (*unpacked)->bytes().size() != header.unpacked_bytes) return false;
  file.unpacked = *std::move(unpacked);
  return true;
}

bool IsPacked(const IndexedFile& file, const Unpacking& unpacking) {
  return unpacking.unpack != nullptr || IsGzip(file.original->bytes());
}

absl::Status Build(const std::string& stem, Layout layout, const Unpacking& unpacking,
                   IndexedFile& file) {
  const FileIdentity& identity = file.original->identity();
  const bool is_packed = IsPacked(file, unpacking);
  const std::shared_ptr<const MappedFile> stale = ReadIndex(stem + ".index");
  if (is_packed) {
    const std::string path = UnpackedPath(stem, identity);
    absl::Status status = Unpack(file.original->path(), unpacking, path);
    if (!status.ok()) return status;
    auto unpacked = MappedFile::Open(path);
    if (!unpacked.ok()) return unpacked.status();
    file.unpacked = *std::move(unpacked);
  }
  absl::StatusOr<SampleBegins> found = FindSamples(file.bytes(), layout);
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat(file.original->path(), ": ", found.status().message()));
  }
  absl::Status status = file.original->CheckUnchanged();
  if (!status.ok()) return status;
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.layout = static_cast<uint32_t>(layout);
  header.is_unpacked = is_packed ? 1 : 0;
  header.original = identity;
  header.unpacked_bytes = is_packed ? file.unpacked->bytes().size() : 0;
  header.blank_lines = found->blank_lines;
  header.count = found->begins.size();
  status = WriteIndex(stem + ".index", header, found->begins);
  if (!status.ok()) return status;
  if (stale != nullptr && HeaderOf(*stale).original != identity)
    std::remove(UnpackedPath(stem, HeaderOf(*stale).original).c_str());
  if (!TakeCached(stem, layout, file)) {
    return absl::UnknownError(
        absl::StrCat("the index of ", file.original->path(), " is gone from ", stem, ".index"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SampleBegins> FindSamples(absl::string_view bytes, Layout layout) {
  if (layout == Layout::kTar) return FindTarSamples(bytes);
  if (layout == Layout::kLines) return FindLines(bytes);
  if (layout == Layout::kRows) return FindRows(bytes);
  if (layout == Layout::kJson) return FindJson(bytes);
  SampleBegins whole;
  if (!bytes.empty()) whole.begins.push_back(0);
  return whole;
}

absl::Span<const uint64_t> IndexedFile::begins() const {
  if (index == nullptr) return begins_in_memory;
  return {reinterpret_cast<const uint64_t*>(index->bytes().data() + sizeof(Header)),
          static_cast<size_t>(HeaderOf(*index).count)};
}

absl::StatusOr<IndexedFile> OpenIndexed(const std::string& path, Layout layout,
                                        const std::string& cache_folder,
                                        const Unpacking& unpacking) {
  IndexedFile file;
  auto original = MappedFile::Open(path);
  if (!original.ok()) return original.status();
  file.original = *std::move(original);
  const bool is_packed = IsPacked(file, unpacking);
  if (!is_packed && absl::EndsWithIgnoreCase(path, ".gz")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": not a gzip file, ",
        file.original->bytes().empty() ? "since it is empty" : "although its name ends in .gz",
        "; compress it, or take .gz from its name"));
  }
  if (!is_packed && file.original->bytes().size() < kMinBytesToKeep) {
    absl::StatusOr<SampleBegins> found = FindSamples(file.bytes(), layout);
    if (!found.ok()) {
      return absl::Status(found.status().code(),
                          absl::StrCat(path, ": ", found.status().message()));
    }
    file.begins_in_memory = std::move(found->begins);
    file.blank_lines = found->blank_lines;
    return file;
  }
  const std::string stem = CacheStem(path, cache_folder, unpacking.name);
  if (TakeCached(stem, layout, file)) return file;
  std::error_code error;
  fs::create_directories(cache_folder, error);
  if (error) {
    return WithAdvice(absl::UnknownError(
        absl::StrCat("cannot make the folder ", cache_folder, ": ", error.message())));
  }
  const absl::StatusOr<CacheLock> lock = CacheLock::Take(cache_folder);
  if (!lock.ok()) return lock.status();
  if (TakeCached(stem, layout, file)) return file;
  const absl::Status status = Build(stem, layout, unpacking, file);
  if (!status.ok()) return status;
  return file;
}

}  // namespace lockstep::data
