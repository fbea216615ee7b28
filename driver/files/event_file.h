// TensorBoard's event files, which `tensorboard --logdir runs/` reads.
//
//    EventFile events("runs/digits_vlm-20261121-1200");
//    events.Write(/*step=*/0, {{"loss", 2.31}, {"validation/accuracy", 0.97}});
//
// When Write returns, its record is in the file, whole or not at all: a killed process loses no
// earlier record. A run that continues after a restart opens a second file next to the old one. The
// first record of the new file tells TensorBoard to ignore the old file's records of that step and
// later ones.
//
// Format: TFRecord frames (length, checksum, bytes, checksum; checksums are CRC-32C, masked) of
// `Event` messages, from the definitions of event.proto, summary.proto and tensor.proto. Not
// thread-safe.

#ifndef LOCKSTEP_DRIVER_FILES_EVENT_FILE_H_
#define LOCKSTEP_DRIVER_FILES_EVENT_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "driver/files/append_file.h"

namespace lockstep::driver {

// Values by tag; TensorBoard groups tags by "/". Written as float32, as TensorBoard stores them.
using Scalars = std::vector<std::pair<std::string, double>>;

class EventFile {
 public:
  // Creates `folder`/events.out.tfevents.<seconds>.<host>.<pid>.<count>. Throws std::runtime_error,
  // with the path and the reason, if it cannot.
  explicit EventFile(const std::string& folder);

  // Writes all scalars as one record, with the time of day. Throws std::runtime_error, with the
  // reason, if the record cannot be written.
  void Write(int64_t step, const Scalars& scalars);

  // Writes a text, which TensorBoard shows as Markdown, as one record. Throws as Write does.
  void WriteText(int64_t step, const std::string& tag, const std::string& text);

  const std::string& path() const { return file_.path(); }

 private:
  void Begin(int64_t step);
  void WriteRecord(const std::string& event);

  AppendFile file_;
  bool has_begun_ = false;  // the first step is known
};

// Return `Event` messages. `time_s`: seconds since 1970.
std::string EncodeScalars(double time_s, int64_t step, const Scalars& scalars);
std::string EncodeText(double time_s, int64_t step, const std::string& tag,
                       const std::string& text);

// Returns `event` in its frame.
std::string FrameRecord(absl::string_view event);

// Returns the CRC-32C of RFC 3720, not masked.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_EVENT_FILE_H_
