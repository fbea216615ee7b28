#include "driver/launch/background_writer.h"

#include <poll.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() { close(ends[0]); }  // the writer's thread may be about to use the other end
  int ends[2] = {-1, -1};
};

std::string Read(int fd, size_t size) {
  std::string text(size, '\0');
  for (size_t begin = 0; begin < size;) {
    const ssize_t count = read(fd, text.data() + begin, size - begin);
    if (count <= 0) return text.substr(0, begin);
    begin += static_cast<size_t>(count);
  }
  return text;
}

void WaitUntilWritten(BackgroundWriter& writer) {
  while (writer.unwritten() > 0) {
    pollfd event = {writer.event_fd(), POLLIN, 0};
    poll(&event, 1, -1);
    writer.ClearEvent();
  }
}

TEST(BackgroundWriter, WritesInOrder) {
  const Pipe pipe;
  BackgroundWriter writer(pipe.ends[1]);

  writer.Write("one\n");
  writer.Write("two\n");

  WaitUntilWritten(writer);
  EXPECT_EQ(Read(pipe.ends[0], 8), "one\ntwo\n");
}

TEST(BackgroundWriter, DoesNotBlockWithoutAReaderAndLosesNothing) {
  const Pipe pipe;
  BackgroundWriter writer(pipe.ends[1]);
  const std::string text(1 << 19, 'x');

  for (int i = 0; i < 3; ++i) writer.Write(text);

  EXPECT_TRUE(writer.is_full());  // a pipe takes 64 KiB of it
  EXPECT_EQ(Read(pipe.ends[0], 3 * text.size()), text + text + text);
  WaitUntilWritten(writer);
  EXPECT_FALSE(writer.is_full());
}

TEST(BackgroundWriter, DropsWhatTheDescriptorRefuses) {
  BackgroundWriter writer(-1);

  writer.Write("lost");

  WaitUntilWritten(writer);
}

}  // namespace
}  // namespace lockstep::driver
