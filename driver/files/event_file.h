// TensorBoard's event files: what `tensorboard --logdir runs/` reads.
//
//   EventFile events("runs/digits_vlm-20261121-1200");
//   events.Write(/*step=*/0, {{"loss", 2.31}, {"validation/accuracy", 0.97}});
//
// Each record is in the file when Write returns, whole or not at all: a process that is killed
// loses none of those before. A run that goes on after a restart opens a file of its own beside the
// old one; its first record tells TensorBoard to forget what the old one says of that step and
// later ones.
//
// Format: TFRecord frames (length, checksum, bytes, checksum; checksums are CRC-32C, masked) of
// `Event` messages, from the definitions of event.proto, summary.proto and tensor.proto. No thread
// safety.

#ifndef LOCKSTEP_DRIVER_FILES_EVENT_FILE_H_
#define LOCKSTEP_DRIVER_FILES_EVENT_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "driver/files/append_file.h"

namespace lockstep::driver {

// By tag; a "/" groups tags in TensorBoard. Written as float32, as TensorBoard keeps them.
using Scalars = std::vector<std::pair<std::string, double>>;

class EventFile {
 public:
  // Makes `folder`/events.out.tfevents.<seconds>.<host>.<pid>.<count>. Throws std::runtime_error,
  // with the path and the reason, where it cannot.
  explicit EventFile(const std::string& folder);

  // Writes all scalars as one record, with the time of day. Throws std::runtime_error, with the
  // reason, if the record cannot be written.
  void Write(int64_t step, const Scalars& scalars);

  // A text, which TensorBoard shows as Markdown, in one record. Throws as Write does.
  void WriteText(int64_t step, const std::string& tag, const std::string& text);

  const std::string& path() const { return file_.path(); }

 private:
  void Begin(int64_t step);
  void WriteRecord(const std::string& event);

  AppendFile file_;
  bool has_begun_ = false;  // the first step is known
};

// `Event` messages. `time_s`: seconds since 1970.
std::string EncodeScalars(double time_s, int64_t step, const Scalars& scalars);
std::string EncodeText(double time_s, int64_t step, const std::string& tag,
                       const std::string& text);

// `event` in its frame.
std::string FrameRecord(absl::string_view event);

// CRC-32C, as in RFC 3720; not masked.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_FILES_EVENT_FILE_H_
