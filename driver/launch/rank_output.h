// Forwards the output of ranks line by line: "[rank 1] loss 0.5".
//
//   RankOutput output;
//   const int fd = output.AddStream(1, STDOUT_FILENO);  // the rank's new stdout
//   poll(...) of output.PollFds(); output.Forward();
//
// Nothing here blocks where nobody reads our own output. A rank whose lines nobody reads waits when
// it prints, since its pipe is full. Where stdout and stderr are one file, no line breaks another.
//
// Thread: one caller, which blocks the signals that it does not want its threads to take.

#ifndef LOCKSTEP_DRIVER_LAUNCH_RANK_OUTPUT_H_
#define LOCKSTEP_DRIVER_LAUNCH_RANK_OUTPUT_H_

#include <poll.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "driver/launch/background_writer.h"

namespace lockstep::driver {

class RankOutput {
 public:
  // Writes to stdout and stderr.
  RankOutput();

  // Returns the write end of a pipe for the rank's stdout or stderr (`to`), or -1 where the rank
  // keeps ours: rank 0 a terminal, on which it draws. Throws c10::Error.
  int AddStream(int rank, int to);

  // Returns what to poll: streams whose reader is not behind, and whether something was written.
  std::vector<pollfd> PollFds() const;

  // Reads each stream once, so that signals are heard while a rank never stops printing.
  void Forward();

  // Reads what the pipes still hold when every rank has ended, and closes them.
  void ForwardTheRest();

  // Prints a line of our own to stderr.
  void Say(const std::string& line);

  // Bytes that are not written yet.
  size_t unwritten() const;

 private:
  struct Stream {
    int fd = -1;
    BackgroundWriter* to = nullptr;
    std::string prefix;
    std::string partial;  // the line so far
  };

  static bool ForwardOnce(Stream& stream);
  static void EndLastLine(Stream& stream);
  static void PrintLines(Stream& stream, size_t seen);

  BackgroundWriter out_;
  std::unique_ptr<BackgroundWriter> own_err_;
  BackgroundWriter& err_;  // out_ where both are one file
  std::vector<Stream> streams_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_RANK_OUTPUT_H_
