#include "driver/files/safetensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/files/json_text.h"
#include "driver/files/regular_file.h"
#include "nlohmann/json.hpp"

namespace lockstep::driver {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the format says
constexpr uint64_t kAlignment = 8;                 // of the data in what we write
constexpr size_t kMaxDims = 64;
constexpr int kMaxDepth = 4;  // of a header: {"name": {"shape": [2]}} has three levels
constexpr char kMetadata[] = "__metadata__";

using Json = nlohmann::json;

struct Dtype {
  const char* name;
  uint64_t bytes;
};
constexpr Dtype kDtypes[] = {{"F64", 8}, {"F32", 4},     {"F16", 2},     {"BF16", 2},
                             {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I64", 8},
                             {"I32", 4}, {"I16", 2},     {"I8", 1},      {"U64", 8},
                             {"U32", 4}, {"U16", 2},     {"U8", 1},      {"BOOL", 1}};

absl::Status Wrong(const std::string& text) { return absl::InvalidArgumentError(text); }

const Json* Member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// --- Reading a header ----------------------------------------------------------------------------

// Bytes of a tensor of this shape; false where no memory could hold its strides.
bool CountBytes(const std::vector<int64_t>& shape, uint64_t element_bytes, uint64_t& bytes) {
  int64_t largest = static_cast<int64_t>(element_bytes);  // as if no dimension were 0
  bool is_empty = false;
  for (const int64_t size : shape) {
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(largest, std::max<int64_t>(size, 1), &largest)) return false;
  }
  bytes = is_empty ? 0 : static_cast<uint64_t>(largest);
  return true;
}

absl::Status ReadShape(const Json* value, const std::string& name, TensorEntry& entry) {
  if (value == nullptr || !value->is_array()) return Wrong("has no shape for " + name);
  if (value->size() > kMaxDims) {
    return Wrong(absl::StrCat("has a shape for ", name, " of ", value->size(),
                              " dimensions; at most ", kMaxDims, " are read"));
  }
  for (const Json& size : *value) {
    const bool fits = size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX;
    if (!fits)
      return Wrong("has an invalid shape for " + name +
                   ": dimensions must be whole numbers from 0 on");
    entry.shape.push_back(size.get<int64_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadOffsets(const Json* value, const std::string& name, TensorEntry& entry) {
  const bool two = value != nullptr && value->is_array() && value->size() == 2 &&
                   (*value)[0].is_number_unsigned() && (*value)[1].is_number_unsigned();
  if (!two) return Wrong("has invalid data_offsets for " + name + ": expected two whole numbers");
  entry.begin = (*value)[0].get<uint64_t>();
  entry.end = (*value)[1].get<uint64_t>();
  return absl::OkStatus();
}

absl::StatusOr<TensorEntry> ReadEntry(std::string name, const Json& value, uint64_t data_bytes) {
  TensorEntry entry;
  entry.name = std::move(name);
  const std::string quoted = absl::StrCat("\"", entry.name, "\"");
  if (!value.is_object()) return Wrong("has no description of " + quoted);
  const Json* dtype = Member(value, "dtype");
  if (dtype == nullptr || !dtype->is_string()) return Wrong("has no dtype for " + quoted);
  entry.dtype = dtype->get<std::string>();
  const uint64_t element_bytes = DtypeBytes(entry.dtype);
  if (element_bytes == 0) return Wrong("has " + quoted + " in the unknown dtype " + entry.dtype);
  absl::Status status = ReadShape(Member(value, "shape"), quoted, entry);
  if (status.ok()) status = ReadOffsets(Member(value, "data_offsets"), quoted, entry);
  if (!status.ok()) return status;
  if (entry.end > data_bytes) {
    return Wrong(absl::StrCat("is cut short: ", quoted, " ends at byte ", entry.end,
                              " of the data, which has ", data_bytes));
  }
  if (entry.begin > entry.end) {
    return Wrong(absl::StrCat("lets ", quoted, " end at byte ", entry.end, " of the data, before ",
                              entry.begin, ", where it begins"));
  }
  uint64_t bytes = 0;
  const bool fits_memory = CountBytes(entry.shape, element_bytes, bytes);
  if (!fits_memory || entry.end - entry.begin != bytes) {
    return Wrong(absl::StrCat("gives ", quoted, " ", entry.end - entry.begin, " bytes, but ",
                              entry.dtype, " {", absl::StrJoin(entry.shape, ", "), "} takes ",
                              fits_memory ? absl::StrCat(bytes) : "more than 2^63"));
  }
  return entry;
}

absl::Status ReadMetadata(const Json& value, std::map<std::string, std::string>& metadata) {
  if (!value.is_object()) return Wrong("has a __metadata__ that is no JSON object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return Wrong(absl::StrCat("has a value for \"", key, "\" in __metadata__ that is no text"));
    }
    metadata[key] = text.get<std::string>();
  }
  return absl::OkStatus();
}

// The tensors must cover the data without gap or overlap, as the format says.
absl::Status CheckLayout(const std::vector<TensorEntry>& entries, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry& entry = entries[i];
    if (entry.begin < covered) {
      return Wrong(
          absl::StrCat("lets \"", entries[i - 1].name, "\" and \"", entry.name, "\" overlap"));
    }
    if (entry.begin > covered) {
      return Wrong(absl::StrCat("has a gap of ", entry.begin - covered, " bytes before \"",
                                entry.name, "\""));
    }
    covered = entry.end;
  }
  if (covered < data_bytes) {
    return Wrong(absl::StrCat("has ", data_bytes - covered, " bytes after its last tensor"));
  }
  return absl::OkStatus();
}

// --- Files ---------------------------------------------------------------------------------------

struct Mapping {
  void* address = nullptr;
  size_t size = 0;
  ~Mapping() {
    if (address != nullptr) munmap(address, size);
  }
};

absl::StatusOr<std::shared_ptr<Mapping>> Map(const std::string& path) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("cannot open ", path, ": ", file.status().message()));
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->size = static_cast<size_t>(file->bytes());
  if (mapping->size == 0) return mapping;
  // Without NORESERVE the kernel would set aside memory for a copy of the whole file, in case that
  // every page of the private mapping is written to.
  void* address = mmap(nullptr, mapping->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                       file->fd(), 0);
  if (address == MAP_FAILED)
    return Wrong(absl::StrCat(path, " cannot be mapped: ", std::strerror(errno)));
  mapping->address = address;
  return mapping;
}

}  // namespace

uint64_t DtypeBytes(absl::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (dtype == known.name) return known.bytes;
  }
  return 0;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t data_bytes) {
  std::set<std::string> seen;
  std::string twice;
  // Leaves out deeper values than a header has, and sees each name before it replaces an earlier
  // one.
  const auto keep = [&](int depth, Json::parse_event_t event, Json& name) {
    if (event == Json::parse_event_t::key && depth == 1 && !seen.insert(name).second)
      twice = name.get<std::string>();
    return depth <= kMaxDepth;
  };
  Json object;
  try {
    object = Json::parse(json.begin(), json.end(), keep);
  } catch (const Json::parse_error& error) {
    return Wrong("has a header that is not JSON: " + JsonMistake(error.what(), error.byte, json));
  } catch (const Json::out_of_range& error) {  // a number beyond a double
    return Wrong("has a header that is not JSON: " + JsonMistake(error.what(), 0, json));
  }
  if (!object.is_object()) return Wrong("has a header that is not a JSON object");
  if (!twice.empty()) return Wrong("has \"" + twice + "\" twice");

  SafetensorsHeader header;
  for (const auto& [name, value] : object.items()) {
    if (name == kMetadata) {
      const absl::Status status = ReadMetadata(value, header.metadata);
      if (!status.ok()) return status;
      continue;
    }
    absl::StatusOr<TensorEntry> entry = ReadEntry(name, value, data_bytes);
    if (!entry.ok()) return entry.status();
    header.entries.push_back(*std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  const absl::Status status = CheckLayout(header.entries, data_bytes);
  if (!status.ok()) return status;
  return header;
}

absl::StatusOr<std::string> WriteSafetensorsHeader(SafetensorsHeader& header) {
  JsonWriter writer(/*indent=*/0);
  writer.StartObject();
  if (!header.metadata.empty()) {
    writer.Key(kMetadata);
    writer.StartObject();
    for (const auto& [key, value] : header.metadata) {
      if (!writer.Key(key) || !writer.String(value))
        return Wrong(absl::StrCat("the metadata \"", key, "\" is text that is not UTF-8"));
    }
    writer.EndObject();
  }
  uint64_t offset = 0;
  std::set<std::string> seen;
  for (TensorEntry& entry : header.entries) {
    if (entry.name.empty() || entry.name == kMetadata || !seen.insert(entry.name).second) {
      return Wrong(
          absl::StrCat("\"", entry.name, "\" is not a valid tensor name, or is used twice"));
    }
    uint64_t bytes = 0;
    const uint64_t element_bytes = DtypeBytes(entry.dtype);
    if (element_bytes == 0 || !CountBytes(entry.shape, element_bytes, bytes))
      return Wrong(
          absl::StrCat("\"", entry.name, "\" is ", entry.dtype, ", which the format lacks"));
    entry.begin = offset;
    entry.end = offset += bytes;
    if (!writer.Key(entry.name))
      return Wrong(absl::StrCat("the name \"", entry.name, "\" is text that is not UTF-8"));
    writer.StartObject();
    writer.Key("dtype");
    writer.String(entry.dtype);
    writer.Key("shape");
    writer.StartArray();
    for (const int64_t size : entry.shape) writer.Integer(size);
    writer.EndArray();
    writer.Key("data_offsets");
    writer.StartArray();
    writer.Integer(entry.begin);
    writer.Integer(entry.end);
    writer.EndArray();
    writer.EndObject();
  }
  writer.EndObject();

  std::string json = std::move(writer).text();
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return Wrong(absl::StrCat("the header would have ", json.size(), " bytes, the format allows ",
                              kMaxHeaderBytes, "; write fewer tensors into one file"));
  }
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return length + json;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<std::shared_ptr<Mapping>> mapping = Map(path);
  if (!mapping.ok()) return mapping.status();
  const uint64_t size = (*mapping)->size;
  if (size < kLengthBytes) {
    return Wrong(
        absl::StrCat(path, " is ", size, " bytes long, too short to be a safetensors file"));
  }
  char* const address = static_cast<char*>((*mapping)->address);
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(address[i]);
  if (length > kMaxHeaderBytes) {
    return Wrong(absl::StrCat(path, " claims a header of ", length,
                              " bytes; it is not a safetensors file, or it is damaged"));
  }
  if (kLengthBytes + length > size) {
    return Wrong(absl::StrCat(path, " is cut short: it has ", size,
                              " bytes, and its header alone needs ", kLengthBytes + length));
  }
  const uint64_t data_begin = kLengthBytes + length;
  absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensorsHeader({address + kLengthBytes, length}, size - data_begin);
  if (!header.ok()) return Wrong(absl::StrCat(path, " ", std::string(header.status().message())));

  SafetensorsFile file;
  file.header_ = *std::move(header);
  file.mapping_ = *std::move(mapping);
  file.data_ = address + data_begin;
  return file;
}

}  // namespace lockstep::driver
