// A disk that does not answer: to open a file in a folder named `silent` never ends.
//
// It takes the place of the C library's functions, in a program that is started with
// LD_PRELOAD=silent_disk.so and all that it starts, as the calls of a lost network folder do.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>

namespace {

void WaitIfSilent(const char* path) {
  while (std::strstr(path, "silent/") != nullptr) pause();
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int Open(const char* name, const char* path, int flags, va_list more) {
  WaitIfSilent(path);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  return Next<int (*)(const char*, int, ...)>(name)(path, flags, mode);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int fd = Open("open", path, flags, more);
  va_end(more);
  return fd;
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int fd = Open("open64", path, flags, more);
  va_end(more);
  return fd;
}

}  // extern "C"
