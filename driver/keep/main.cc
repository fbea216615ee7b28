// lockstep_keep --name=NAME [--watch=PID] [--idle=SECONDS] [--ready-fd=3]: see keeper.h.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "driver/keep/keeper.h"

namespace {

// Returns the text behind `flag` if the argument begins with it, otherwise nullptr.
const char* Value(const char* argument, const char* flag) {
  const size_t size = std::strlen(flag);
  return std::strncmp(argument, flag, size) == 0 ? argument + size : nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::driver::KeeperOptions options;
  for (int i = 1; i < argc; ++i) {
    if (const char* text = Value(argv[i], "--name=")) {
      options.name = text;
    } else if (const char* text = Value(argv[i], "--watch=")) {
      options.watch = std::atoi(text);
    } else if (const char* text = Value(argv[i], "--idle=")) {
      options.idle_s = std::atoi(text);
    } else if (const char* text = Value(argv[i], "--ready-fd=")) {
      options.ready_fd = std::atoi(text);
    } else {
      std::fprintf(stderr, "lockstep keep: unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  if (options.name.empty()) {
    std::fputs(
        "lockstep keep: --name=NAME is missing: the first line of keep.id in the run's folder\n",
        stderr);
    return 2;
  }
  // Closes the files that the rank which started this had open: its sockets and its run's lock.
  for (int fd = 3; fd < static_cast<int>(sysconf(_SC_OPEN_MAX)) && fd < 65536; ++fd) {
    if (fd != options.ready_fd) close(fd);
  }
  return lockstep::driver::Keep(options);
}
