#include "driver/data/cache_lock.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string NewFolder() {
  std::string path = absl::StrCat(::testing::TempDir(), "/cache.XXXXXX");
  return mkdtemp(path.data());
}

// A process that takes the lock of the folder, and then does `work`.
class Holder {
 public:
  Holder(const std::string& folder, const std::function<void()>& work) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const absl::StatusOr<CacheLock> lock = CacheLock::Take(folder);
      if (!lock.ok() || write(ends[1], "x", 1) != 1) _exit(1);
      work();
      _exit(0);
    }
    close(ends[1]);
    char byte;
    EXPECT_EQ(read(ends[0], &byte, 1), 1) << "it did not get the lock";
    close(ends[0]);
  }
  ~Holder() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

void Work(absl::Duration time) {
  for (const Deadline end(time); !end.has_passed();) {
  }
}

TEST(CacheLock, IsFreeAgainWhenItsHolderLetsGo) {
  const std::string folder = NewFolder();
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<CacheLock> lock = CacheLock::Take(folder, absl::Milliseconds(1));
    EXPECT_TRUE(lock.ok()) << lock.status();
  }
}

TEST(CacheLock, OneAtATimeHasIt) {
  const std::string folder = NewFolder();
  std::atomic<int> holders = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const absl::StatusOr<CacheLock> lock = CacheLock::Take(folder);
      EXPECT_TRUE(lock.ok());
      EXPECT_EQ(++holders, 1);
      Work(absl::Milliseconds(20));
      --holders;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Longer than the patience by far, and than a beat.
TEST(CacheLock, AHolderThatWorksIsWaitedFor) {
  const std::string folder = NewFolder();
  const Holder holder(folder, [] { Work(absl::Seconds(7)); });

  const absl::StatusOr<CacheLock> lock = CacheLock::Take(folder, absl::Seconds(3));

  EXPECT_TRUE(lock.ok()) << lock.status();
}

TEST(CacheLock, AHolderThatIsKilledIsNotWaitedFor) {
  const std::string folder = NewFolder();
  {
    const Holder holder(folder, [] { pause(); });
  }

  EXPECT_TRUE(CacheLock::Take(folder, absl::Milliseconds(1)).ok());
}

TEST(CacheLock, AHolderThatIsStoppedIsNamed) {
  const std::string folder = NewFolder();
  const Holder holder(folder, [] { Work(absl::InfiniteDuration()); });
  kill(holder.pid(), SIGSTOP);

  const absl::Status status = CacheLock::Take(folder, absl::Seconds(1)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat("process ", holder.pid(), " on ")),
                    HasSubstr(absl::StrCat(" holds ", folder, "/lock and has not worked for 1s")),
                    HasSubstr("LOCKSTEP_CACHE")));
}

// Its thread for beats runs, but the one that holds the lock waits.
TEST(CacheLock, AHolderWhoseDiskDoesNotAnswerIsNamed) {
  const std::string folder = NewFolder();
  const Holder holder(folder, [] { pause(); });

  EXPECT_EQ(CacheLock::Take(folder, absl::Seconds(3)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(CacheLock, AFolderThatCannotBeLockedIsUsedWithoutALock) {
  EXPECT_TRUE(CacheLock::Take("/proc/self").ok());
  EXPECT_TRUE(CacheLock::Take("/nowhere").ok());
}

}  // namespace
}  // namespace lockstep::data
