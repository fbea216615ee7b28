// A wall clock that jumps: each reading is an hour early, right, or an hour late.
//
// It takes the place of the C library's functions that read CLOCK_REALTIME, in a test that is
// linked with this file, or in a program with LD_PRELOAD=jumping_clock.so and all that it
// starts. A wait whose deadline comes from that clock then ends at once or lasts an hour. Other
// clocks are left alone.

#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr time_t kJump = 3600;

// The error of this thread's last reading, in seconds; 0 if it read another clock since.
thread_local time_t last_offset = 0;

// The same offsets in each process, and no short period that a loop could keep step with.
time_t NextOffset() {
  static std::atomic<uint64_t> count{0};
  const uint64_t mixed = (count.fetch_add(1) + 1) * 0x9e3779b97f4a7c15u;
  return last_offset = (static_cast<time_t>((mixed >> 33) % 3) - 1) * kJump;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  last_offset = 0;
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += NextOffset();
  return result;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) noexcept {
  timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  if (out != nullptr) *out = exact.tv_sec;
  return exact.tv_sec;
}

// libtorch's wheel was built for a C library without pthread_cond_clockwait: it computes a time of
// the wall clock for each wait, and looks at the steady clock after it. The kernel's clock does not
// jump, so that time must be right.
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  using Function = int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
  static const auto real =
      reinterpret_cast<Function>(dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"));
  timespec right = *until;
  right.tv_sec -= last_offset;
  return real(condition, mutex, &right);
}

}  // extern "C"
