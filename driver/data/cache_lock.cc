#include "driver/data/cache_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "driver/files/run_lock.h"

namespace lockstep::data {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(50);
constexpr std::chrono::milliseconds kBetweenBeats(500);

// The lock file's content and time. A holder that works changes them.
struct Sign {
  int64_t seconds = 0, nanoseconds = 0;
  std::string holder;

  friend bool operator==(const Sign&, const Sign&) = default;
};

Sign ReadSign(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return {};
  char name[256];
  const ssize_t size = pread(fd, name, sizeof(name), 0);
  return {status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
          size > 0 ? std::string(name, static_cast<size_t>(size)) : "another process"};
}

int64_t CpuNanoseconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

// Holds the lock, on a thread of its own that renews the file's time.
class CacheLock::Heartbeat {
 public:
  explicit Heartbeat(int fd) : fd_(fd) {
    const std::string own = driver::DescribeProcess();
    // On a full disk the lock holds all the same, without a name.
    if (ftruncate(fd_, 0) == 0) std::ignore = pwrite(fd_, own.data(), own.size(), 0);
    clockid_t clock;
    if (pthread_getcpuclockid(pthread_self(), &clock) != 0) clock = CLOCK_PROCESS_CPUTIME_ID;
    thread_ = std::thread([this, clock] { Beat(clock); });
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    end_.notify_one();
    thread_.join();
    close(fd_);
  }

 private:
  void Beat(clockid_t clock) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int64_t before = -1; !ended_; end_.wait_for(lock, kBetweenBeats)) {
      const int64_t used = CpuNanoseconds(clock);
      if (std::exchange(before, used) != used) futimens(fd_, nullptr);
    }
  }

  const int fd_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;  // under the mutex
  std::thread thread_;
};

CacheLock::CacheLock(std::unique_ptr<Heartbeat> heartbeat) : heartbeat_(std::move(heartbeat)) {}
CacheLock::CacheLock(CacheLock&&) noexcept = default;
CacheLock& CacheLock::operator=(CacheLock&&) noexcept = default;
CacheLock::~CacheLock() = default;

absl::StatusOr<CacheLock> CacheLock::Take(const std::string& folder, absl::Duration patience) {
  const std::string path = folder + "/lock";
  // Counts looks, and not time: if this process is stopped with its holder, neither is late.
  const int64_t most_looks = patience / absl::FromChrono(kBetweenLooks);
  Sign last;
  for (int64_t looks = 0; looks <= most_looks; ++looks) {
    // Opened again each time: NFS then asks its server for the file's time.
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0) return CacheLock(nullptr);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return CacheLock(std::make_unique<Heartbeat>(fd));
    const int error = errno;
    Sign sign = ReadSign(fd);
    close(fd);
    if (error != EWOULDBLOCK && error != EINTR) return CacheLock(nullptr);
    if (sign != last) looks = 0;
    last = std::move(sign);
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      last.holder, " holds ", path, " and has not worked for ", absl::FormatDuration(patience),
      ": it is stopped, or its disk does not answer. Continue or end it, or take another cache "
      "folder: cache =, or LOCKSTEP_CACHE"));
}

}  // namespace lockstep::data
