// A disk that is full, or slow: to flush a file of tensors fails, or waits.
//
// It takes the place of the C library's function, in a program that is started with
// LD_PRELOAD=faulty_disk.so. LOCKSTEP_FAULTY_DISK names a folder. While it holds a file `full`, the
// disk is full. While it holds a pipe `held`, a file is flushed once somebody writes to the pipe.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

bool IsOfTensors(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = readlink(link.c_str(), path, sizeof(path));
  return size > 0 &&
         std::string(path, static_cast<size_t>(size)).find(".safetensors") != std::string::npos;
}

}  // namespace

extern "C" int fsync(int fd) {
  const char* const folder = std::getenv("LOCKSTEP_FAULTY_DISK");
  if (folder != nullptr && IsOfTensors(fd)) {
    // To open a pipe waits for a process that opens it to write.
    const int held = open((std::string(folder) + "/held").c_str(), O_RDONLY | O_CLOEXEC);
    if (held >= 0) close(held);
    if (access((std::string(folder) + "/full").c_str(), F_OK) == 0) {
      errno = ENOSPC;
      return -1;
    }
  }
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"))(fd);
}
