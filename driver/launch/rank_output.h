// Forwards the output of ranks line by line: "[rank 1] loss 0.5".
//
//    RankOutput output;
//    const int fd = output.AddStream(1, STDOUT_FILENO);  // the rank's new stdout
//    poll(...) of output.PollFds(); output.Forward();
//
// Nothing here blocks if the reader of our own output stops. The pipes of ranks that print fill up
// then, and they wait. If stdout and stderr are one file, lines are never mixed.
//
// Thread: one caller. It blocks the signals that the threads of this class must not take.

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

  // Returns the write end of a pipe for the rank's stdout or stderr (`to`). Returns -1 if the rank
  // shares ours: rank 0 draws on the terminal itself. Throws c10::Error.
  int AddStream(int rank, int to);

  // Returns the descriptors to poll: streams whose reader keeps up, and the writers' events.
  std::vector<pollfd> PollFds() const;

  // Reads each stream once, so that signals are handled although a rank never stops printing.
  void Forward();

  // Reads the rest from the pipes when every rank has ended, and closes them.
  void ForwardTheRest();

  // Prints a line of the launcher to stderr.
  void Say(const std::string& line);

  // Returns the number of bytes that are not written yet.
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
  BackgroundWriter& err_;  // out_ if both are one file
  std::vector<Stream> streams_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_RANK_OUTPUT_H_
