#include "driver/ranks/step_board.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/numbers.h"
#include "c10/util/Exception.h"

namespace lockstep::driver {
namespace {

using Step = std::atomic<int64_t>;
static_assert(Step::is_always_lock_free && sizeof(Step) == sizeof(int64_t));

Step* own_step = nullptr;  // set before the script's thread runs

void* Map(int fd, size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

size_t BytesFor(int num_ranks) { return static_cast<size_t>(num_ranks) * sizeof(Step); }

}  // namespace

StepBoard::StepBoard(int num_ranks) : num_ranks_(num_ranks) {
  fd_ = memfd_create("lockstep-steps", 0);
  const bool is_made =
      fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(BytesFor(num_ranks_))) == 0;  // of zeros
  void* const memory = is_made ? Map(fd_, BytesFor(num_ranks_)) : MAP_FAILED;
  TORCH_CHECK(memory != MAP_FAILED,
              "cannot make the memory in which ranks note their steps: ", std::strerror(errno));
  steps_ = static_cast<Step*>(memory);
}

StepBoard::~StepBoard() {
  if (steps_ != nullptr) munmap(steps_, BytesFor(num_ranks_));
  if (fd_ >= 0) close(fd_);
}

std::optional<int64_t> StepBoard::step(int local_rank) const {
  const int64_t noted = steps_[local_rank];
  return noted == 0 ? std::nullopt : std::make_optional(noted - 1);
}

void JoinStepBoard(int local_rank) {
  const char* const text = std::getenv(StepBoard::kVariable);
  int fd = -1;
  if (text == nullptr || !absl::SimpleAtoi(text, &fd) || fd <= STDERR_FILENO) return;
  unsetenv(StepBoard::kVariable);
  struct stat status {};
  const size_t bytes = BytesFor(local_rank + 1);
  if (fstat(fd, &status) != 0 || status.st_size < static_cast<off_t>(bytes)) return;
  void* const memory = Map(fd, bytes);
  close(fd);
  if (memory != MAP_FAILED) own_step = static_cast<Step*>(memory) + local_rank;
}

void NoteStep(int64_t step) {
  if (own_step != nullptr) *own_step = step + 1;
}

}  // namespace lockstep::driver
