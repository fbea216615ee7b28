#include "driver/launch/background_writer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep::driver {
namespace {

constexpr size_t kFull = 1 << 20;
constexpr size_t kAtOnce = 4096;  // so that a slow reader is seen to read

// Blocks until some of it is written; returns how much, or all where the descriptor has an error.
size_t WriteSome(int fd, const char* data, size_t size) {
  for (;;) {
    const ssize_t written = write(fd, data, size);
    if (written >= 0) return static_cast<size_t>(written);
    if (errno == EAGAIN) {  // another process has made the descriptor non-blocking
      pollfd room = {fd, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return size;
    }
  }
}

}  // namespace

struct BackgroundWriter::State {
  int fd = -1;
  int event_fd = -1;
  std::mutex mutex;
  std::condition_variable changed;
  std::string queue;     // under the mutex, as all below
  size_t unwritten = 0;  // of the queue and of what the thread writes now
  bool is_ending = false;

  ~State() { close(event_fd); }
};

BackgroundWriter::BackgroundWriter(int fd) : state_(std::make_shared<State>()) {
  state_->fd = fd;
  state_->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::thread([state = state_] { Run(state); }).detach();
}

BackgroundWriter::~BackgroundWriter() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->is_ending = true;
  state_->changed.notify_one();
}

void BackgroundWriter::Run(const std::shared_ptr<State>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return !state->queue.empty() || state->is_ending; });
    if (state->queue.empty()) return;
    const std::string text = std::exchange(state->queue, "");
    for (size_t begin = 0; begin < text.size();) {
      lock.unlock();
      const size_t written =
          WriteSome(state->fd, text.data() + begin, std::min(kAtOnce, text.size() - begin));
      lock.lock();
      begin += written;
      state->unwritten -= written;
      const uint64_t one = 1;
      if (write(state->event_fd, &one, sizeof(one)) < 0) continue;  // it is readable already
    }
  }
}

void BackgroundWriter::Write(const std::string& text) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->queue += text;
  state_->unwritten += text.size();
  state_->changed.notify_one();
}

size_t BackgroundWriter::unwritten() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->unwritten;
}

bool BackgroundWriter::is_full() const { return unwritten() >= kFull; }

int BackgroundWriter::event_fd() const { return state_->event_fd; }

void BackgroundWriter::ClearEvent() {
  uint64_t count = 0;
  while (read(state_->event_fd, &count, sizeof(count)) > 0) {
  }
}

}  // namespace lockstep::driver
