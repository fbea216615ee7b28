// A program that is late to read what was typed: the first key waits until Ctrl-C has removed it
// from the terminal. Then nothing is left to read, although the program was told that there is.
//
// It takes the place of the C library's ppoll in a program that is started with
// LD_PRELOAD=late_read.so, and says "late" once the key is there.

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

extern "C" int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  static const auto next =
      reinterpret_cast<int (*)(pollfd*, nfds_t, const timespec*, const sigset_t*)>(
          dlsym(RTLD_NEXT, "ppoll"));
  static bool is_first = true;
  const int ready = next(fds, count, timeout, mask);
  if (!is_first || ready != 1 || count != 1 || fds[0].fd != STDIN_FILENO) return ready;
  is_first = false;
  constexpr char kLate[] = "late";
  int left = write(STDOUT_FILENO, kLate, std::strlen(kLate)) > 0 ? 1 : 0;
  while (left > 0 && ioctl(STDIN_FILENO, FIONREAD, &left) == 0) continue;
  return ready;
}
