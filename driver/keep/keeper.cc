#include "driver/keep/keeper.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <random>
#include <vector>

#include "driver/keep/message.h"

namespace lockstep::driver {
namespace {

constexpr int kRetryMilliseconds = 100;

struct Kept {
  Snapshot snapshot;
  int fd = -1;
};

class Snapshots {
 public:
  ~Snapshots() {
    for (const Kept& kept : kept_) close(kept.fd);
  }

  // Returns whether it held snapshots, and all were dropped.
  bool is_done() const { return kept_.empty() && was_dropped_; }

  Packet Answer(const Received& received, uint64_t own_number, int& fd) {
    Packet answer = received.packet;
    const Snapshot& asked = received.packet.snapshot;
    if (IsOfEarlierStart(received.packet)) {
      if (received.fd >= 0) close(received.fd);
      answer.is_refused = 1;
      return answer;
    }
    switch (received.packet.request) {
      case Request::kHello:
        answer.snapshot.bytes = own_number;
        answer.start = newest_start_;
        break;
      case Request::kBegin: newest_start_ = received.packet.start; break;
      case Request::kPut:
        answer.is_found = received.fd >= 0 ? 1 : 0;
        if (received.fd >= 0) Put(asked, received.fd);
        break;
      case Request::kDrop:
        Remove([&](const Snapshot& one) {
          return one.owner == asked.owner && one.step == asked.step;
        });
        was_dropped_ = true;
        break;
      case Request::kCount: answer.snapshot.bytes = kept_.size(); break;
      case Request::kAt:
        answer.is_found = asked.bytes < kept_.size() ? 1 : 0;
        if (answer.is_found != 0) answer.snapshot = kept_[asked.bytes].snapshot;
        break;
      case Request::kGet:
        for (const Kept& kept : kept_) {
          if (kept.snapshot.owner != asked.owner || kept.snapshot.step != asked.step) continue;
          answer.is_found = 1;
          answer.snapshot = kept.snapshot;
          fd = kept.fd;
        }
        break;
    }
    if (received.fd >= 0 && received.packet.request != Request::kPut) close(received.fd);
    return answer;
  }

 private:
  // A rank may outlive its start of the run: one that was stopped, or that an agent which died has
  // left behind. It must not replace or drop what a newer start relies on. Nor may it drop memory
  // in order to write to it again, which a newer start may be reading.
  bool IsOfEarlierStart(const Packet& packet) const {
    const bool changes_something = packet.request == Request::kBegin ||
                                   packet.request == Request::kPut ||
                                   packet.request == Request::kDrop;
    return changes_something && packet.start < newest_start_;
  }

  // Replaces the owner's snapshots of this step and of later ones, which are of an earlier start.
  // The newest one of the steps before stays.
  void Put(const Snapshot& snapshot, int fd) {
    Remove([&](const Snapshot& one) {
      return one.owner == snapshot.owner && one.step >= snapshot.step;
    });
    int64_t before = -1;
    for (const Kept& kept : kept_) {
      if (kept.snapshot.owner == snapshot.owner) before = std::max(before, kept.snapshot.step);
    }
    Remove([&](const Snapshot& one) {
      const bool is_own = one.owner == snapshot.owner;
      const bool is_of_others = one.world != snapshot.world || one.start != snapshot.start;
      return (is_own || is_of_others) && one.step < before;
    });
    kept_.push_back({snapshot, fd});
  }

  template <typename Condition>
  void Remove(const Condition& condition) {
    const auto end = std::stable_partition(
        kept_.begin(), kept_.end(), [&](const Kept& kept) { return !condition(kept.snapshot); });
    for (auto kept = end; kept != kept_.end(); ++kept) close(kept->fd);
    kept_.erase(end, kept_.end());
  }

  std::vector<Kept> kept_;
  bool was_dropped_ = false;
  int64_t newest_start_ = 0;
};

int Listen(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = AddressOf(name, address);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(fd, 128) == 0)
    return fd;
  if (fd >= 0) close(fd);
  return -1;
}

uint64_t DrawNumber() {
  std::random_device random;
  return uint64_t{random()} << 20 ^ random();  // Lua's numbers hold it
}

}  // namespace

int Keep(const KeeperOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  const int listener = Listen(options.name);
  if (listener < 0) return 1;
  std::vector<pollfd> fds = {{listener, POLLIN, 0}};
  int watched = -1;
  if (options.watch > 0) {
    watched = static_cast<int>(syscall(SYS_pidfd_open, options.watch, 0));
    if (watched < 0 && errno == ESRCH) return 0;
  }
  fds.push_back({watched, POLLIN, 0});  // poll skips -1
  if (options.ready_fd >= 0) {
    const char ready = 1;
    if (write(options.ready_fd, &ready, 1) != 1) return 1;
    close(options.ready_fd);
  }
  const uint64_t own_number = DrawNumber();
  Snapshots snapshots;
  bool can_accept = true;
  for (;;) {
    const bool is_alone = fds.size() == 2;
    if (is_alone && snapshots.is_done()) return 0;
    // Without a free descriptor the listener stays readable: it is left out for a moment.
    fds[0].fd = can_accept ? listener : -1;
    const int wait = !can_accept ? kRetryMilliseconds : is_alone ? options.idle_s * 1000 : -1;
    const int count = poll(fds.data(), fds.size(), wait);
    if (count < 0 && errno != EINTR) return 1;
    if (count < 0) continue;
    if ((count == 0 && can_accept) || fds[1].revents != 0) return 0;
    can_accept = true;
    for (size_t i = 2; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const std::optional<Received> received = Receive(fds[i].fd);
      if (received.has_value()) {
        int fd = -1;
        const Packet answer = snapshots.Answer(*received, own_number, fd);
        if (Send(fds[i].fd, answer, fd)) continue;
      }
      close(fds[i].fd);
      fds[i].fd = -2;
    }
    fds.erase(
        std::remove_if(fds.begin() + 2, fds.end(), [](const pollfd& one) { return one.fd == -2; }),
        fds.end());
    if (fds[0].revents != 0) {
      const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection >= 0 && IsOwnUser(connection)) {
        fds.push_back({connection, POLLIN, 0});
      } else if (connection >= 0) {
        close(connection);
      } else {
        can_accept = errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
      }
    }
  }
}

}  // namespace lockstep::driver
