// Writes to a descriptor from its own thread. If the reader stops, such as `less` on its first
// page, only that thread blocks and the caller goes on.
//
//    BackgroundWriter writer(STDOUT_FILENO);
//    writer.Write("a line\n");
//    if (writer.is_full()) ...  // wait until event_fd() is readable
//
// Not for descriptors that are closed while this object lives. Text that is unwritten when the
// process ends is lost: see unwritten(). Errors of the descriptor drop the text, as in stdio.
//
// Thread: one caller.

#ifndef LOCKSTEP_DRIVER_LAUNCH_BACKGROUND_WRITER_H_
#define LOCKSTEP_DRIVER_LAUNCH_BACKGROUND_WRITER_H_

#include <cstddef>
#include <memory>
#include <string>

namespace lockstep::driver {

class BackgroundWriter {
 public:
  explicit BackgroundWriter(int fd);
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;
  // Does not wait: the thread ends when it has written everything.
  ~BackgroundWriter();

  // Appends to the text to write. Never blocks.
  void Write(const std::string& text);

  // Returns whether 1 MiB or more is unwritten: a caller that can wait with more text should.
  bool is_full() const;

  // Returns the number of bytes that are not written yet.
  size_t unwritten() const;

  // Returns a descriptor that is readable if something was written since ClearEvent.
  int event_fd() const;
  void ClearEvent();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LAUNCH_BACKGROUND_WRITER_H_
