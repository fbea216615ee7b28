#include "driver/files/event_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

namespace lockstep::driver {
namespace {

// --- Protocol buffers: a message is a string of fields, each a key (number and kind), then a
// value.

void AppendVarint(std::string& message, uint64_t value) {
  for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>(value | 0x80));
  message.push_back(static_cast<char>(value));
}

enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendKey(std::string& message, uint32_t field, Wire wire) {
  AppendVarint(message, field << 3 | static_cast<uint32_t>(wire));
}

void AppendInteger(std::string& message, uint32_t field, uint64_t value) {
  AppendKey(message, field, Wire::kVarint);
  AppendVarint(message, value);
}

void AppendBytes(std::string& message, uint32_t field, absl::string_view bytes) {
  AppendKey(message, field, Wire::kBytes);
  AppendVarint(message, bytes.size());
  message.append(bytes.data(), bytes.size());
}

// x86-64 is little-endian, as the formats are.
template <typename T>
void AppendFixed(std::string& message, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  message.append(bytes, sizeof(T));
}

// Field numbers of event.proto, summary.proto and tensor.proto.
constexpr uint32_t kEventWallTime = 1;
constexpr uint32_t kEventStep = 2;
constexpr uint32_t kEventFileVersion = 3;
constexpr uint32_t kEventSummary = 5;
constexpr uint32_t kEventSessionLog = 7;
constexpr uint32_t kSessionLogStatus = 1;
constexpr uint64_t kSessionLogStart = 1;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimpleValue = 2;
constexpr uint32_t kValueTensor = 8;
constexpr uint32_t kValueMetadata = 9;
constexpr uint32_t kMetadataPluginData = 1;
constexpr uint32_t kMetadataDataClass = 4;
constexpr uint64_t kDataClassTensor = 2;
constexpr uint32_t kPluginName = 1;
constexpr uint32_t kTensorDtype = 1;
constexpr uint32_t kTensorShape = 2;
constexpr uint32_t kTensorString = 8;
constexpr uint64_t kDtString = 7;

std::string EncodeTime(double time_s) {
  std::string event;
  AppendKey(event, kEventWallTime, Wire::kFixed64);
  AppendFixed(event, time_s);
  return event;
}

std::string EncodeTimeAndStep(double time_s, int64_t step) {
  std::string event = EncodeTime(time_s);
  AppendInteger(event, kEventStep, static_cast<uint64_t>(step));
  return event;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string NewPath(const std::string& folder) {
  static std::atomic<int> count{0};
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  return absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d.%d", folder,
                         static_cast<int64_t>(Now()), host, getpid(), count++);
}

AppendFile OpenNew(const std::string& path) {
  absl::StatusOr<AppendFile> file = AppendFile::Open(path, AppendFile::Existing::kRefuse);
  if (!file.ok()) throw std::runtime_error(std::string(file.status().message()));
  return *std::move(file);
}

std::array<uint32_t, 256> MakeCrcTable() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

// A checksum of data that holds checksums would be weak: TFRecord rotates it and adds a constant.
uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

}  // namespace

EventFile::EventFile(const std::string& folder) : file_(OpenNew(NewPath(folder))) {
  std::string event = EncodeTime(Now());
  AppendBytes(event, kEventFileVersion, "brain.Event:2");
  WriteRecord(event);
}

void EventFile::Write(int64_t step, const Scalars& scalars) {
  Begin(step);
  WriteRecord(EncodeScalars(Now(), step, scalars));
}

void EventFile::WriteText(int64_t step, const std::string& tag, const std::string& text) {
  Begin(step);
  WriteRecord(EncodeText(Now(), step, tag, text));
}

void EventFile::Begin(int64_t step) {
  if (has_begun_) return;
  std::string log;
  AppendInteger(log, kSessionLogStatus, kSessionLogStart);
  std::string event = EncodeTimeAndStep(Now(), step);
  AppendBytes(event, kEventSessionLog, log);
  WriteRecord(event);
  has_begun_ = true;
}

void EventFile::WriteRecord(const std::string& event) {
  const absl::Status status = file_.Append(FrameRecord(event));
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

std::string EncodeScalars(double time_s, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    AppendBytes(value, kValueTag, tag);
    AppendKey(value, kValueSimpleValue, Wire::kFixed32);
    AppendFixed(value, static_cast<float>(number));
    AppendBytes(summary, kSummaryValue, value);
  }
  std::string event = EncodeTimeAndStep(time_s, step);
  AppendBytes(event, kEventSummary, summary);
  return event;
}

std::string EncodeText(double time_s, int64_t step, const std::string& tag,
                       const std::string& text) {
  std::string tensor;  // a scalar of strings
  AppendInteger(tensor, kTensorDtype, kDtString);
  AppendBytes(tensor, kTensorShape, "");
  AppendBytes(tensor, kTensorString, text);
  std::string plugin;
  AppendBytes(plugin, kPluginName, "text");
  std::string metadata;
  AppendBytes(metadata, kMetadataPluginData, plugin);
  AppendInteger(metadata, kMetadataDataClass, kDataClassTensor);
  std::string value;
  AppendBytes(value, kValueTag, tag);
  AppendBytes(value, kValueTensor, tensor);
  AppendBytes(value, kValueMetadata, metadata);
  std::string summary;
  AppendBytes(summary, kSummaryValue, value);
  std::string event = EncodeTimeAndStep(time_s, step);
  AppendBytes(event, kEventSummary, summary);
  return event;
}

std::string FrameRecord(absl::string_view event) {
  std::string record;
  AppendFixed(record, static_cast<uint64_t>(event.size()));
  AppendFixed(record, MaskedCrc(record));
  record.append(event.data(), event.size());
  AppendFixed(record, MaskedCrc(event));
  return record;
}

uint32_t Crc32c(absl::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

}  // namespace lockstep::driver
