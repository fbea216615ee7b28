#include "driver/launch/rank_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace lockstep::driver {
namespace {

bool IsSameFile(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

}  // namespace

RankOutput::RankOutput()
    : out_(STDOUT_FILENO),
      own_err_(IsSameFile(STDOUT_FILENO, STDERR_FILENO)
                   ? nullptr
                   : std::make_unique<BackgroundWriter>(STDERR_FILENO)),
      err_(own_err_ == nullptr ? out_ : *own_err_) {}

int RankOutput::AddStream(int rank, int to) {
  if (rank == 0 && isatty(to) != 0) return -1;
  int ends[2];
  TORCH_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe: ", std::strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  streams_.push_back({ends[0], to == STDOUT_FILENO ? &out_ : &err_,
                      rank == 0 ? "" : absl::StrCat("[rank ", rank, "] "), ""});
  return ends[1];
}

std::vector<pollfd> RankOutput::PollFds() const {
  std::vector<pollfd> fds = {{out_.event_fd(), POLLIN, 0}};
  if (own_err_ != nullptr) fds.push_back({own_err_->event_fd(), POLLIN, 0});
  for (const Stream& stream : streams_) {
    if (stream.fd >= 0 && !stream.to->is_full()) fds.push_back({stream.fd, POLLIN, 0});
  }
  return fds;
}

void RankOutput::Forward() {
  out_.ClearEvent();
  err_.ClearEvent();
  for (Stream& stream : streams_) {
    if (!stream.to->is_full()) ForwardOnce(stream);
  }
}

// As much as a pipe can hold: a process that left its rank's group may print forever.
void RankOutput::ForwardTheRest() {
  constexpr int kReads = 16;
  for (Stream& stream : streams_) {
    for (int i = 0; i < kReads && ForwardOnce(stream); ++i) {
    }
    EndLastLine(stream);
    if (stream.fd >= 0) close(stream.fd);
  }
  streams_.clear();
}

void RankOutput::Say(const std::string& line) { err_.Write(line + "\n"); }

size_t RankOutput::unwritten() const {
  return out_.unwritten() + (own_err_ == nullptr ? 0 : own_err_->unwritten());
}

// Returns false where nothing came.
bool RankOutput::ForwardOnce(Stream& stream) {
  if (stream.fd < 0) return false;
  char buffer[65536];
  const ssize_t size = read(stream.fd, buffer, sizeof(buffer));
  if (size < 0) return false;
  if (size == 0) {
    EndLastLine(stream);
    close(stream.fd);
    stream.fd = -1;
    return false;
  }
  const size_t seen = stream.partial.size();
  stream.partial.append(buffer, static_cast<size_t>(size));
  PrintLines(stream, seen);
  return true;
}

void RankOutput::EndLastLine(Stream& stream) {
  if (stream.partial.empty()) return;
  stream.partial += '\n';
  PrintLines(stream, 0);
}

// Prints the complete lines of the new text. The first `seen` bytes of `stream.partial` contain no
// line end.
void RankOutput::PrintLines(Stream& stream, size_t seen) {
  std::string lines;
  size_t begin = 0;
  for (size_t end; (end = stream.partial.find('\n', std::max(begin, seen))) != std::string::npos;
       begin = end + 1) {
    absl::StrAppend(&lines, stream.prefix, stream.partial.substr(begin, end - begin + 1));
  }
  stream.partial.erase(0, begin);
  if (!lines.empty()) stream.to->Write(lines);
}

}  // namespace lockstep::driver
